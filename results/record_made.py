"""Writing what is measured and made beside training: benchmarks of a block, and files made of results."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa

from results import schema
from results.claims import Provenance
from results.record import environment_id, insert_into, now_us
from results.store import Store, as_text
from schemas.bench import BenchRow

Kind: TypeAlias = Literal["figure", "table", "report"]


def record_bench(
    store: Store, rows: Sequence[BenchRow], *, environment: Mapping[str, Any], provenance: Provenance
) -> None:
    """Write measurements; a later one of the same thing on the same machine takes the earlier one's place.

    Args:
        store: open for writing.
        rows: the measurements.
        environment: what `trainer.process.environment` says of this machine, `hostname` among it.
        provenance: which code measured.
    """
    table = schema.bench
    with store.write() as connection:
        shared = {
            "hostname": environment["hostname"],
            "environment_id": environment_id(connection, environment, provenance.packages),
            "git_sha": provenance.git_sha,
            "dirty": provenance.dirty,
        }
        for row in rows:
            values = shared | asdict(row)
            values["measured_at_us"] = values.pop("time_us")
            insert = insert_into(connection, table).values(**values)
            connection.execute(
                insert.on_conflict_do_update(
                    index_elements=schema.BENCH_KEY,
                    set_={name: insert.excluded[name] for name in values if name not in schema.BENCH_KEY},
                    where=insert.excluded.measured_at_us >= table.c.measured_at_us,
                )
            )


def record_artifacts(
    store: Store,
    kind: Kind,
    made: Mapping[str, Sequence[Path]],
    *,
    sweep: str,
    filters: Mapping[str, Any],
) -> None:
    """Write which files were made of a sweep; a file that is made again takes its own place.

    Args:
        store: open for writing.
        kind: what the files are.
        made: the files that are there now, by the name of the figure, table or report.
        sweep: the name of the sweep that they show, which the store knows.
        filters: what was asked of its pairs, by axis.
    """
    table = schema.artifact
    asked = json.dumps(filters, sort_keys=True, default=str)
    now = now_us()
    # Read before the transaction: nobody else may write to the store while that lasts.
    files = [_described(name, path) for name, paths in made.items() for path in paths]
    with store.write() as connection:
        query = sa.select(schema.sweep.c.id).where(schema.sweep.c.name == sweep)
        shared = {
            "sweep_id": connection.execute(query).scalar_one(),
            "kind": kind,
            "filters": asked,
            "produced_at_us": now,
        }
        for file in files:
            insert = insert_into(connection, table).values(shared | file)
            connection.execute(insert.on_conflict_do_update(index_elements=["path"], set_=shared | file))


def _described(name: str, path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {
        "name": name,
        "path": as_text(str(path.absolute())),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
