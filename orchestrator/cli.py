"""The command line, `xsa`. Heavy imports live inside the commands, so that `--help` answers at once."""

import gc
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.arguments import Db
from orchestrator.cli_bench import bench_app
from orchestrator.cli_cluster import cluster_app, submit_app
from orchestrator.cli_data import data_app
from orchestrator.cli_db import db_app
from orchestrator.cli_eval import eval_app
from orchestrator.cli_look import look_app
from orchestrator.cli_run import print_notes, run_app
from schemas.errors import UserError

ORDER = (
    *("plan", "run", "retry", "eval", "stop", "status", "show", "results", "figures", "tables", "report"),
    *("bench", "submit", "cluster", "data", "ingest", "db", "axes"),
)
"""The commands as `xsa --help` lists them: as one needs them."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    cls=_InOrder,
    name="xsa",
    help="Sweeps of paired attention experiments (SA and XSA), their results in SQL, and the figures from them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)
for commands in (run_app, eval_app, bench_app, look_app, submit_app):
    app.registered_commands += commands.registered_commands
app.add_typer(cluster_app, name="cluster")
app.add_typer(data_app, name="data")
app.add_typer(db_app, name="db")


@app.command()
def ingest(
    storage: Annotated[Path, typer.Argument(help="A storage directory, such as runs/.")], db: Db = None
) -> None:
    """Rebuild the store from the arms' folders.

    Repeating it changes nothing.

    Example: xsa ingest runs
    """
    from orchestrator.show import console
    from results.record import ingest as ingest_arm
    from results.store import Store
    from schemas.report import DamagedJournal

    folders = sorted(path.parent for path in (storage / "arms").glob("*/arm.json"))
    if not folders:
        raise UserError(
            f"{storage} holds no arms (no {storage}/arms/*/arm.json). Name the storage of a run, such as runs/."
        )
    taken, damaged = 0, []
    with Store.open(db, mode="write") as store:
        print_notes(store)
        for folder in folders:
            try:
                taken += ingest_arm(store, folder)
            except DamagedJournal as error:
                damaged.append(str(error))
    console.print(f"{taken} of {len(folders)} arms brought up to date in {store.name}.")
    console.print("`xsa run SWEEP.yaml` brings their sweeps back, and trains nothing that is done.")
    if damaged:
        raise UserError("\n".join(damaged))


def main() -> None:
    """Run the command line: a user's mistake is one message and exit code 2."""
    gc.set_threshold(100_000)  # at Python's own 700, a fifth of the time of imports is collecting garbage
    try:
        app()
    except UserError as error:
        print(f"xsa: {error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:  # in which Typer has turned Ctrl-C
        if end.code == 130:
            print("xsa: interrupted; what was done is kept.", file=sys.stderr)
        if end.code == signal.SIGTERM:  # as Ray's own handler ends a run that is still starting it
            print("xsa: terminated; what was done is kept.", file=sys.stderr)
            sys.exit(128 + signal.SIGTERM)
        raise
