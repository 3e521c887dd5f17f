"""`xsa submit` and `xsa cluster`: a sweep on a Ray cluster, and whether the cluster is fit for it."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.arguments import Address, AsJson, Data, Db, SweepFile, use_cluster
from orchestrator.cli_eval import TaskData
from schemas.errors import UserError

cluster_app = typer.Typer(
    help="Look at a Ray cluster: check.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
submit_app = typer.Typer()
SharedStorage = Annotated[
    str | None,
    typer.Option("--storage", envvar="XSA_STORAGE", help="A folder that all nodes share.", metavar="DIR"),
]


@submit_app.command()
def submit(
    sweep_file: SweepFile,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            envvar="RAY_API_SERVER_ADDRESS",
            help="The cluster's job server.",
            metavar="http://HEAD:8265",
        ),
    ],
    db: Db = None,
    storage: SharedStorage = None,
    data: Data = None,
    task_data: TaskData = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print what the job prints, until it ends.")
    ] = False,
) -> None:
    """Run a sweep on a Ray cluster, as a job that this terminal need not wait for.

    This program's own code and the sweep file are sent along. The same sweep under way is not
    started twice. `xsa status`, `stop` and `results` with the same --db work from here.

    Example: xsa submit sweeps/lr.yaml --address http://head:8265 --db postgresql://me@db/sweeps --storage /shared/runs
    """
    from orchestrator import jobs
    from orchestrator.show import console
    from schemas.sweep import Sweep

    sweep = Sweep.load(sweep_file)
    env = jobs.check_places(address, sweep, db, storage, data, str(task_data) if task_data else None)
    client = jobs.connect(address)
    with tempfile.TemporaryDirectory(prefix="xsa-job-") as folder:
        files, size = jobs.package(sweep_file, Path(folder))
        console.print(f"Sending {files} files, {size / 1e6:.1f} MB: this program and {sweep_file.name}.")
        job_id, new = jobs.submit(client, sweep, sweep_file, Path(folder), env)
    console.print(f"{job_id} {'is started' if new else 'is under way already'}.", markup=False)
    if follow:
        try:
            code = jobs.follow(client, job_id, lambda text: print(text, end="", flush=True))
        except KeyboardInterrupt:
            print(f"xsa: the job goes on; xsa stop {sweep.name} ends it.", file=sys.stderr)
            raise typer.Exit(130) from None
        raise typer.Exit(code)
    there = f"{sweep.name} --db {env['XSA_DB']}"
    console.print(
        f"Watch it: xsa status {there} --watch; end it: xsa stop {there}", markup=False, soft_wrap=True
    )


@cluster_app.command()
def check(
    sweep_file: Annotated[
        Path | None, typer.Argument(help="A sweep that is to run there.", metavar="[SWEEP.yaml]")
    ] = None,
    address: Address = None,
    storage: SharedStorage = None,
    db: Db = None,
    data: Data = None,
    json: AsJson = False,
) -> None:
    """Say whether every node shares the storage, has the same versions and a sane clock, and can do the work.

    Run it on a node of the cluster. Exit code 1 where something is wrong.

    Example: xsa cluster check sweeps/lr.yaml --storage /shared/runs
    """
    if storage is None:
        raise UserError("Name the folder that all nodes must share: --storage /shared/runs.")
    use_cluster(address or "auto")
    from orchestrator.cluster import check_nodes
    from orchestrator.cluster_view import print_reports, report_rows
    from orchestrator.data import data_folder, on_data
    from orchestrator.launch import connected_ray, count_slots
    from orchestrator.show import print_json
    from results.store import Store
    from schemas.sweep import Sweep

    sweep, wrong = None, []
    if sweep_file:
        sweep = Sweep.load(sweep_file)
        folder = data_folder(data or sweep.runtime.data, db, Path(storage))
        sweep, missing = on_data(sweep, folder)
        wrong = [
            one.advice(folder) for one in missing if not one.source.is_local
        ]  # a run prepares files itself
    with connected_ray():
        reports = check_nodes(Path(storage).absolute(), sweep)
        try:
            slots = count_slots(sweep.runtime) if sweep else None
        except UserError as error:
            slots = 0
            wrong.append(str(error))
    try:
        name = ": ".join(filter(None, Store.standing(db)))
    except UserError as error:
        name = None
        wrong.append(str(error))
    told = {"nodes": report_rows(reports), "slots": slots, "store": name, "problems": wrong}
    print_json(told) if json else print_reports(told)
    if wrong or any(report.problems for report in reports):
        raise typer.Exit(1)
