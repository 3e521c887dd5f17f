"""The views that queries, tables and figures read, in SQL that is portable but for `INFINITY`.

An infinity is returned as one; a NaN and a missing value both as NULL, told apart by the
arm's status.
"""

from schemas.trial import AXES

INFINITY = "9e999"
"""SQLite's literal. The store puts in its database's own when it makes the views."""


def _axes(owner: str) -> str:
    return ", ".join(f"{owner}.{name}" for name in AXES)


def _arm(step: str) -> str:
    """The columns that the rows of an arm begin with."""
    return f"""a.id AS arm_id, substr(a.fingerprint, 1, 12) AS arm, a.name AS variant, {_axes("a")},
    a.status AS status, {step} AS step"""


def _finite(column: str) -> str:
    return f"CASE {column}_kind WHEN 2 THEN {INFINITY} WHEN 3 THEN -{INFINITY} ELSE {column} END"


def _difference(a: str, b: str) -> str:
    # Of two equal infinities it is NULL in SQLite, but in PostgreSQL a NaN, which is above every number there.
    defined = f"{a}_kind = 0 OR {b}_kind = 0 OR {a}_kind <> {b}_kind"
    return f"CASE WHEN {defined} THEN {_finite(a)} - {_finite(b)} END"


_PAIR_STATUS = """CASE
    WHEN 'failed' IN (s.status, x.status) THEN 'failed'
    WHEN 'running' IN (s.status, x.status) THEN 'running'
    WHEN 'interrupted' IN (s.status, x.status) THEN 'interrupted'
    WHEN 'pending' IN (s.status, x.status) THEN 'pending'
    WHEN 'diverged' IN (s.status, x.status) THEN 'diverged'
    WHEN s.init_sha256 = x.init_sha256 AND s.batch_sha256 = x.batch_sha256 AND s.data_sha256 = x.data_sha256
    THEN 'done' ELSE 'refused' END"""

_SAME_DATA = "sr.data_sha256 = xr.data_sha256 AND sr.task_version = xr.task_version"
_EVAL_PAIRS = """FROM trial t
JOIN arm s ON s.id = t.sa_arm_id
JOIN arm x ON x.id = t.xsa_arm_id
JOIN eval_result sr ON sr.arm_id = s.id
JOIN eval_result xr ON xr.arm_id = x.id AND xr.task = sr.task AND xr.n_shot = sr.n_shot
    AND (xr.item_limit = sr.item_limit OR (xr.item_limit IS NULL AND sr.item_limit IS NULL))
JOIN eval_score ss ON ss.eval_result_id = sr.id
JOIN eval_score xs ON xs.eval_result_id = xr.id AND xs.metric = ss.metric"""
_EVAL_PAIR = f"""t.id AS trial_id, substr(t.fingerprint, 1, 12) AS trial, {_axes("x")},
    {_PAIR_STATUS} AS status, sr.task AS task, ss.metric AS metric, sr.n_shot AS n_shot, sr.item_limit AS item_limit"""

# Of an earlier attempt rows are left where a later one went on from its checkpoint.
_SOURCES = """(a.attempt = t.no
    OR EXISTS (SELECT 1 FROM arm_step st WHERE st.arm_id = t.arm_id AND st.attempt = t.no))"""


_DIRTY = "CASE WHEN t.dirty THEN 1 WHEN NOT t.dirty THEN 0 END"  # PostgreSQL has no least of truths
_DIFFERS = {
    "code": f"min(t.git_sha) <> max(t.git_sha) OR min({_DIRTY}) <> max({_DIRTY})",
    "environment": "min(t.environment_id) <> max(t.environment_id)",
    "threads": "min(t.threads) <> max(t.threads)",
    "micro_batch": "min(t.micro_batch) <> max(t.micro_batch)",
    "execution": "min(t.execution) <> max(t.execution)",
}
_WORDS = " || ".join(f"CASE WHEN {differs} THEN ' {word}' ELSE '' END" for word, differs in _DIFFERS.items())
_MIXED = f"nullif(trim({_WORDS}), '')"
"""What differs between the attempts `t`, in words; NULL where nothing does."""

VIEWS: dict[str, str] = {
    "v_results": f"""
SELECT t.id AS trial_id, substr(t.fingerprint, 1, 12) AS trial, {_axes("x")},
    {_PAIR_STATUS} AS status,
    substr(s.fingerprint, 1, 12) AS sa_arm, substr(x.fingerprint, 1, 12) AS xsa_arm,
    s.status AS sa_status, x.status AS xsa_status, se.step AS step,
    {_finite("ss.train_loss")} AS sa_train_loss, {_finite("xs.train_loss")} AS xsa_train_loss,
    {_difference("xs.train_loss", "ss.train_loss")} AS delta_train_loss,
    {_finite("se.loss")} AS sa_val_loss, {_finite("xe.loss")} AS xsa_val_loss,
    {_difference("xe.loss", "se.loss")} AS delta_val_loss,
    x.n_params AS n_params
FROM trial t
JOIN arm s ON s.id = t.sa_arm_id
JOIN arm x ON x.id = t.xsa_arm_id
LEFT JOIN arm_eval se ON se.arm_id = s.id AND se.split = 'val' AND se.step = (
    SELECT a.step
    FROM arm_eval a JOIN arm_eval b ON b.arm_id = t.xsa_arm_id AND b.split = 'val' AND b.step = a.step
    WHERE a.arm_id = t.sa_arm_id AND a.split = 'val'
    ORDER BY a.step DESC LIMIT 1
)
LEFT JOIN arm_eval xe ON xe.arm_id = x.id AND xe.split = 'val' AND xe.step = se.step
LEFT JOIN arm_step ss ON ss.arm_id = s.id AND ss.step = se.step
LEFT JOIN arm_step xs ON xs.arm_id = x.id AND xs.step = se.step""",
    # CROSS JOIN: SQLite's planner keeps its order, and so looks up the arms before their rows.
    "v_curves": f"""
SELECT {_arm("st.step")}, st.step * a.tokens_per_step AS tokens,
    {_finite("st.train_loss")} AS train_loss, st.lr AS lr_now, {_finite("st.grad_norm")} AS grad_norm,
    st.tok_per_s AS tok_per_s, {_finite("ev.loss")} AS val_loss
FROM arm a CROSS JOIN arm_step st
LEFT JOIN arm_eval ev ON ev.arm_id = st.arm_id AND ev.step = st.step AND ev.split = 'val'
WHERE st.arm_id = a.id
UNION ALL
SELECT {_arm("ev.step")}, ev.step * a.tokens_per_step, NULL, NULL, NULL, NULL, {_finite("ev.loss")}
FROM arm a CROSS JOIN arm_eval ev
WHERE ev.arm_id = a.id AND ev.split = 'val'
    AND NOT EXISTS (SELECT 1 FROM arm_step st WHERE st.arm_id = ev.arm_id AND st.step = ev.step)""",
    "v_layers": f"""
SELECT {_arm("l.step")}, m.name AS metric, l.layer AS layer, {_finite("l.value")} AS value
FROM arm a CROSS JOIN layer_metric l JOIN metric m ON m.id = l.metric_id
WHERE l.arm_id = a.id""",
    "v_attempts": f"""
SELECT a.id AS arm_id, substr(a.fingerprint, 1, 12) AS arm, a.name AS variant, {_axes("a")},
    t.no AS attempt, t.status AS status, t.cause AS cause, t.error AS error, t.traceback AS traceback,
    t.hostname AS hostname, t.device AS device, t.threads AS threads, t.git_sha AS git_sha, t.dirty AS dirty,
    t.micro_batch AS micro_batch, t.execution AS execution, t.compile_error AS compile_error,
    t.activation_checkpointing AS activation_checkpointing,
    t.flops_per_s AS flops_per_s, t.peak_flops_per_s AS peak_flops_per_s, t.peak_source AS peak_source,
    t.flops_per_s / nullif(t.peak_flops_per_s, 0) AS mfu,
    t.peak_rss_bytes AS peak_rss_bytes, t.peak_gpu_bytes AS peak_gpu_bytes,
    t.started_at_us AS started_at_us, t.ended_at_us AS ended_at_us,
    e.document AS environment
FROM attempt t JOIN arm a ON a.id = t.arm_id LEFT JOIN environment e ON e.id = t.environment_id""",
    "v_evals": f"""
SELECT {_arm("r.step")}, r.task AS task, c.metric AS metric, r.n_shot AS n_shot, r.item_limit AS item_limit,
    c.value AS value, c.stderr AS stderr, r.n_items AS n_items, r.error AS error,
    r.task_version AS task_version, r.harness_version AS harness_version, r.data_sha256 AS data_sha256,
    r.batch_size AS batch_size, r.device AS device, r.wall_s AS wall_s, r.ended_at_us AS ended_at_us
FROM eval_result r JOIN arm a ON a.id = r.arm_id LEFT JOIN eval_score c ON c.eval_result_id = r.id""",
    "v_eval_pairs": f"""
SELECT {_EVAL_PAIR}, {_SAME_DATA} AS same_data, ss.value AS sa_value, xs.value AS xsa_value,
    CASE WHEN {_SAME_DATA} THEN xs.value - ss.value END AS delta_value,
    ss.stderr AS sa_stderr, xs.stderr AS xsa_stderr, sr.n_items AS sa_n_items, xr.n_items AS xsa_n_items,
    ss.id AS sa_score_id, xs.id AS xsa_score_id
{_EVAL_PAIRS}""",
    "v_eval_items": f"""
SELECT {_EVAL_PAIR}, si.item AS item, si.value AS sa_value, xi.value AS xsa_value
{_EVAL_PAIRS}
JOIN eval_item si ON si.eval_score_id = ss.id
JOIN eval_item xi ON xi.eval_score_id = xs.id AND xi.item = si.item
WHERE {_SAME_DATA}""",
    "v_checkpoints": f"""
SELECT {_arm("c.step")}, c.path AS path, c.bytes AS bytes, c.manifest_sha256 AS manifest_sha256,
    c.saved_at_us AS saved_at_us
FROM checkpoint c JOIN arm a ON a.id = c.arm_id""",
    "v_provenance": f"""
SELECT {_arm("a.step")}, count(*) AS attempts, n.git_sha AS git_sha, n.dirty AS dirty,
    n.hostname AS hostname, n.device AS device, n.threads AS threads, n.micro_batch AS micro_batch,
    n.execution AS execution, e.document AS environment, {_MIXED} AS mixed
FROM arm a JOIN attempt n ON n.arm_id = a.id AND n.no = a.attempt
LEFT JOIN environment e ON e.id = n.environment_id
JOIN attempt t ON t.arm_id = a.id AND {_SOURCES}
GROUP BY a.id, n.id, e.id""",
    "v_mixed": f"""
SELECT p.id AS trial_id, substr(p.fingerprint, 1, 12) AS trial, {_axes("x")},
    substr(s.fingerprint, 1, 12) AS sa_arm, substr(x.fingerprint, 1, 12) AS xsa_arm,
    {_MIXED} AS mixed
FROM trial p JOIN arm s ON s.id = p.sa_arm_id JOIN arm x ON x.id = p.xsa_arm_id
JOIN arm a ON a.id IN (p.sa_arm_id, p.xsa_arm_id)
JOIN attempt t ON t.arm_id = a.id AND {_SOURCES}
GROUP BY p.id, s.id, x.id
HAVING {_MIXED} IS NOT NULL""",
    "v_bench": """
SELECT b.id AS bench_id, b.variant AS variant, b.seq_len AS seq_len, b.d_model AS d_model, b.n_head AS n_head,
    b.d_head AS d_head, b.batch_size AS batch_size, b.dtype AS dtype, b.execution AS execution,
    b.direction AS direction, b.repeats AS repeats, b.ms AS ms, b.ms_low AS ms_low, b.ms_high AS ms_high,
    b.peak_bytes AS peak_bytes, b.hostname AS hostname, b.device AS device, b.threads AS threads,
    b.git_sha AS git_sha, b.dirty AS dirty, b.measured_at_us AS measured_at_us, e.document AS environment
FROM bench b JOIN environment e ON e.id = b.environment_id""",
    "v_artifacts": """
SELECT f.id AS artifact_id, w.name AS sweep, f.kind AS kind, f.name AS name, f.path AS path, f.bytes AS bytes,
    f.sha256 AS sha256, f.filters AS filters, f.produced_at_us AS produced_at_us
FROM artifact f JOIN sweep w ON w.id = f.sweep_id""",
    "v_sweep_arms": """
SELECT st.sweep_id AS sweep_id, t.sa_arm_id AS arm_id FROM sweep_trial st JOIN trial t ON t.id = st.trial_id
UNION
SELECT st.sweep_id AS sweep_id, t.xsa_arm_id AS arm_id FROM sweep_trial st JOIN trial t ON t.id = st.trial_id""",
    "v_status": """
SELECT w.name AS sweep, a.status AS status, count(*) AS arms
FROM sweep w JOIN v_sweep_arms v ON v.sweep_id = w.id JOIN arm a ON a.id = v.arm_id
GROUP BY w.name, a.status""",
}
"""Definition of each view by name, in the order of creation."""
