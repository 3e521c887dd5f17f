"""`xsa bench`: what a block costs with SA and with XSA."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.arguments import AsJson, Db, why_unwritable
from schemas.errors import UserError

bench_app = typer.Typer()
OUT = Path("reports") / "bench"
MOST = 2**24
"""Longest sequence and widest block that can be asked for."""


@bench_app.command()
def bench(
    seq_len: Annotated[
        str | None,
        typer.Option("--seq-len", help="Lengths, with commas between them.", show_default="the device's"),
    ] = None,
    d_model: Annotated[
        str | None,
        typer.Option("--d-model", help="Widths, with commas between them.", show_default="the device's"),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Sequences.", show_default="4; 32 on a GPU")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32 or bfloat16.", show_default="float32; bfloat16 on a GPU"),
    ] = None,
    execution: Annotated[
        str | None, typer.Option("--execution", help="eager or compiled.", show_default="both")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=2, help="Timed runs of each.", show_default="15; 30 on a GPU"),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda.", show_default="cuda if there is one")
    ] = None,
    db: Db = None,
    out: Annotated[Path, typer.Option("--out", help="Where Figure 2 goes.")] = OUT,
    json: AsJson = False,
) -> None:
    """Measure time and memory of a block, SA and XSA.

    Into the store, and as Figure 2. Each length is measured at each width; where neither is given, lengths and
    widths are the device's own, each at one value of the other. On a GPU they are those of the paper. Exit code 1
    if a block was left out because it cannot be measured here.

    Example: xsa bench --seq-len 128,256,512 --execution eager
    """
    lengths, widths = _numbers("--seq-len", seq_len), _numbers("--d-model", d_model)
    if reason := why_unwritable(out):
        raise UserError(f"Nothing can be written to {out}: {reason}. Choose another place with --out.")
    import torch

    from orchestrator import bench as measuring
    from results.store import Store
    from schemas.names import lookup
    from trainer.bench import EXECUTIONS, Dtype, Settings, shapes

    names = {name: name for name in ("cpu", "cuda")}
    place = measuring.device_for(lookup("device", device, names) if device else None)
    usual = measuring.DEFAULTS[place.type]
    dtypes: dict[str, Dtype] = {"float32": "float32", "bfloat16": "bfloat16"}
    settings = Settings(
        batch_size or usual["batch_size"],
        lookup("precision", dtype, dtypes) if dtype else usual["dtype"],
        repeats or usual["repeats"],
        place,
    )
    executions = (
        [lookup("execution", execution, {name: name for name in EXECUTIONS})] if execution else EXECUTIONS
    )
    chosen = shapes(torch.device(place), lengths, widths)
    with Store.open(db, mode="write") as store:
        for note in store.notes:
            typer.echo(note, err=json)  # what opening the store has done to it
        measured, left_out = measuring.run(store, chosen, executions, settings, as_json=json)
        if measured and not json:
            measuring.draw(store, db, out)
    if left_out:
        raise typer.Exit(1)


def _numbers(option: str, text: str | None) -> list[int]:
    """Return the whole numbers in `128,256`; none where there is no text. Raises `UserError`."""
    if text is None:
        return []
    parts = text.replace("_", "").split(",")
    if not all(part.strip().isdecimal() and 8 <= int(part) <= MOST for part in parts):
        raise UserError(f"{option} {text}: write whole numbers from 8 to {MOST:,}, with commas between them.")
    return [int(part) for part in parts]
