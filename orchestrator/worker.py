"""What a worker runs. Kept apart from the driver's side, so that a worker loads no database."""

from pathlib import Path
from typing import Any

from ray import tune

from schemas.report import Report
from schemas.sweep import Runtime
from schemas.trial import Arm

REPORT = "report"
"""Key of the one value that is given to `tune.report`: a `Report` as text."""


def train_trial(
    config: dict[str, Any], *, arms: dict[str, dict[str, Any]], storage: str, runtime: str, stop_file: str
) -> None:
    """Tune's trainable: train the arms that `config["attempts"]` numbers, of those in `arms`."""
    from trainer.pair import train_pair
    from trainer.process import prepare

    settings = Runtime.model_validate_json(runtime)
    prepare(settings.threads)
    attempts: dict[str, int] = config["attempts"]

    def report(message: Report) -> None:
        tune.report({REPORT: message.dumps()})

    train_pair(
        [Arm(**values) for arm_id, values in arms.items() if arm_id in attempts],
        Path(storage),
        settings,
        attempts=attempts,
        report=report,
        should_stop=Path(stop_file).exists,
    )
