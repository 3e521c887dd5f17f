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
    t.micro_batch AS micro_batch, t.peak_rss_bytes AS peak_rss_bytes, t.peak_gpu_bytes AS peak_gpu_bytes,
    t.started_at_us AS started_at_us, t.ended_at_us AS ended_at_us,
    e.document AS environment
FROM attempt t JOIN arm a ON a.id = t.arm_id LEFT JOIN environment e ON e.id = t.environment_id""",
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
