"""`xsa show`: everything the store has of one arm, or of the two arms of a trial.

What is read is one document; JSON is the document itself, and the terminal a view of it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.detail_view import arm_view, pair_view
from orchestrator.find import Found
from orchestrator.layout import print_parts
from orchestrator.show import print_json, records
from schemas.report import arm_folder
from schemas.trial import AXES, Arm
from trainer.cost import flops_per_token

if TYPE_CHECKING:
    from results.query import Database

_ARM = """
SELECT a.fingerprint AS id, a.name AS variant, a.status, a.reason AS error, a.step, a.n_params, a.wall_s,
    a.init_sha256, a.batch_sha256, a.data_sha256, a.created_at_us, a.finished_at_us
FROM arm a WHERE a.fingerprint = :id"""
_TRIALS = """
SELECT t.fingerprint AS id FROM trial t JOIN arm a ON a.id IN (t.sa_arm_id, t.xsa_arm_id)
WHERE a.fingerprint = :id ORDER BY t.fingerprint"""
_SWEEPS_OF_ARM = """
SELECT w.name, w.storage FROM sweep w JOIN v_sweep_arms v ON v.sweep_id = w.id JOIN arm a ON a.id = v.arm_id
WHERE a.fingerprint = :id ORDER BY w.name"""
_SWEEPS_OF_TRIAL = """
SELECT w.name FROM sweep w JOIN sweep_trial m ON m.sweep_id = w.id JOIN trial t ON t.id = m.trial_id
WHERE t.fingerprint = :id ORDER BY w.name"""
_ARMS_OF_TRIAL = """
SELECT s.fingerprint AS sa, x.fingerprint AS xsa
FROM trial t JOIN arm s ON s.id = t.sa_arm_id JOIN arm x ON x.id = t.xsa_arm_id WHERE t.fingerprint = :id"""
_ATTEMPT = (
    *("attempt", "status", "cause", "error", "traceback", "hostname", "device", "threads", "micro_batch"),
    *("execution", "compile_error", "activation_checkpointing"),
    *("flops_per_s", "peak_flops_per_s", "peak_source", "mfu"),
    *("peak_rss_bytes", "peak_gpu_bytes", "git_sha", "dirty", "started_at", "ended_at", "wall_s"),
)

_SCORE = ("task", "metric", "n_shot", "item_limit", "value", "stderr", "n_items", "error")


def print_found(database: "Database", found: Found, *, as_json: bool) -> None:
    """Print an arm or a trial."""
    of_arm = found.kind == "arm"
    document = arm_document(database, found.id) if of_arm else pair_document(database, found.id)
    if as_json:
        print_json(document)
    else:
        print_parts(arm_view(document) if of_arm else pair_view(document))


def arm_document(database: "Database", arm_id: str) -> dict[str, Any]:
    """Return what the store has of an arm."""
    arm = records(database.sql(_ARM, id=arm_id))[0]
    (settings,) = records(
        database.sql(f"SELECT {', '.join(AXES)} FROM arm WHERE fingerprint = :id", id=arm_id)
    )
    sweeps = records(database.sql(_SWEEPS_OF_ARM, id=arm_id))
    short = arm_id[:12]
    curves = records(
        database.curves(
            arm=short, columns=["step", "train_loss", "val_loss", "lr_now", "grad_norm", "tok_per_s"]
        )
    )
    attempts = records(database.attempts(arm=short, columns=_ATTEMPT))
    layers = database.layers(arm=short, columns=["step", "metric", "layer", "value"])
    return arm | {
        "axes": settings,
        "sweeps": [row["name"] for row in sweeps],
        "trials": [row["id"] for row in records(database.sql(_TRIALS, id=arm_id))],
        "folders": list(dict.fromkeys(str(arm_folder(Path(row["storage"]), arm_id)) for row in sweeps)),
        "attempts": attempts,
        "speed": _speed(attempts, settings),
        "losses": {split: _losses(curves, split) for split in ("train_loss", "val_loss")},
        "curves": curves,
        "evals": records(database.evals(arm=short, columns=_SCORE)),
        "layers": records(layers[layers["step"] == layers["step"].max()]),
    }


def _speed(attempts: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return how fast the newest attempt that was timed trained, or None if none was."""
    timed = [row for row in attempts if row["flops_per_s"] is not None]
    if not timed:
        return None
    last = timed[-1]
    tok_per_s = last["flops_per_s"] / flops_per_token(Arm(**settings))
    return {name: last[name] for name in ("attempt", "device", "mfu", "peak_source")} | {
        "tok_per_s": tok_per_s
    }


def _losses(curves: list[dict[str, Any]], column: str) -> dict[str, Any] | None:
    """Return the first, last and best of the finite values of a curve, or None if it has none."""
    points = [{"step": row["step"], "loss": row[column]} for row in curves if row[column] is not None]
    if not points:
        return None
    return {"first": points[0], "last": points[-1], "best": min(points, key=lambda point: point["loss"])}


def pair_document(database: "Database", trial_id: str) -> dict[str, Any]:
    """Return what the store has of a trial and of its two arms."""
    pair = records(database.pairs(trial=trial_id[:12]))[0]
    arms = records(database.sql(_ARMS_OF_TRIAL, id=trial_id))[0]
    compared = ("status", "step", "delta_train_loss", "delta_val_loss")
    return {
        "id": trial_id,
        **{name: pair[name] for name in compared},
        "sweeps": [row["name"] for row in records(database.sql(_SWEEPS_OF_TRIAL, id=trial_id))],
        "axes": {name: pair[name] for name in AXES},
        "sa": arm_document(database, arms["sa"]),
        "xsa": arm_document(database, arms["xsa"]),
    }
