"""`xsa bench` from beginning to end: blocks measured one by one, each kept as soon as it is measured."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from orchestrator.provenance import provenance
from orchestrator.show import console, print_json
from results.record_made import record_bench
from results.store import Store
from schemas.bench import BenchRow
from schemas.errors import UserError
from trainer import bench, process

if TYPE_CHECKING:
    from trainer.bench import Execution, Settings, Shape

DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"batch_size": 4, "dtype": "float32", "repeats": 15},
    "cuda": {"batch_size": 32, "dtype": "bfloat16", "repeats": 30},
}
"""What holds where an option is left out. On a GPU batch and precision are the paper's."""


def device_for(name: str | None) -> torch.device:
    """Return the device of a name, or the GPU if there is one. Raises `UserError`."""
    chosen = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no GPU here; --device cpu measures on the CPU.")
    return torch.device(chosen)


def run(
    store: Store,
    shapes: "Sequence[Shape]",
    executions: "Sequence[Execution]",
    settings: "Settings",
    *,
    as_json: bool,
) -> tuple[int, int]:
    """Measure blocks and keep the rows; return how many rows there are, and how many blocks were left out.

    A block that cannot be measured is said with its reason, and the rest goes on.
    """
    process.prepare(torch.get_num_threads())
    where, code = process.environment(settings.device), provenance()
    rows: list[BenchRow] = []
    skipped: list[str] = []
    if not as_json:
        _begin(len(shapes), executions, settings, where)
    for shape in shapes:
        for execution in executions:
            try:
                found = bench.measure(shape, settings, execution)
            except bench.CannotMeasure as reason:
                skipped.append(f"{execution}: {reason}")
                if not as_json:
                    console.print(f"Left out, {skipped[-1]}", markup=False, soft_wrap=True)
                continue
            record_bench(store, found, environment=where, provenance=code)
            rows += found
            if not as_json:
                console.print(line(found), markup=False, soft_wrap=True)
    if as_json:
        print_json({"rows": [asdict(row) for row in rows], "left_out": skipped})
    return len(rows), len(skipped)


def _begin(n: int, executions: "Sequence[Execution]", settings: "Settings", where: dict[str, Any]) -> None:
    threads = f"{where['threads']} thread" + "s" * (where["threads"] > 1)
    cores = "" if settings.device.type == "cuda" else f" ({where['cpu']}), {threads}"
    console.print(
        f"{n} shape{'s' * (n > 1)}, {' and '.join(executions)}, on {where['device']}{cores}: "
        f"{settings.batch_size} sequences, {settings.dtype}, median of {settings.repeats}. "
        "In brackets: what XSA takes more than SA.",
        markup=False,
        soft_wrap=True,
    )


def line(rows: Sequence[BenchRow]) -> str:
    """Return what one block costs: SA's time and memory, and what XSA adds to them."""
    of = {(row.direction, row.variant): row for row in rows}
    first = rows[0]
    told = [f"T {first.seq_len:>6,}  width {first.d_model:>5,}  {first.execution:<8}"]
    for direction in ("forward", "forward+backward"):
        sa, xsa = of[direction, "sa"], of[direction, "xsa"]
        told.append(
            f"{direction} {sa.ms:8.2f} ms ({xsa.ms / sa.ms - 1:+5.1%}) "
            f"{sa.peak_bytes / 1e6:9,.1f} MB ({xsa.peak_bytes / sa.peak_bytes - 1:+5.1%})"
        )
    return "  ".join(told)


def draw(store: Store, db: str | None, directory: Path) -> None:
    """Write Figure 2 of all that the store holds, if that is enough for it."""
    import results
    from results.figures import FIGURES
    from results.frames import MissingData

    console.print(f"Results: {store.name}  (in Python: results.open().bench())", soft_wrap=True)
    with results.open(db) as database:
        try:
            paths = FIGURES["fig2"].save(database, directory)
        except MissingData as reason:
            console.print(f"fig2: not made. {reason}", markup=False, soft_wrap=True)
        else:
            console.print(f"fig2: {', '.join(map(str, paths))}", soft_wrap=True)
