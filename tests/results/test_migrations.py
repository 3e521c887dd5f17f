import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from results import schema, upgrade
from results.location import StoreError, url_of
from results.migrations import migrate, revisions
from results.query import Database
from results.record import now_us
from results.store import Store
from schemas.trial import AXES
from tests.conftest import ON_BOTH, make_sweep

PAIR = make_sweep().trials()[3]
EARLIER = pytest.mark.parametrize("revision", revisions()[:-1])


def engine(address: str) -> sa.Engine:
    url = url_of(address)
    return sa.create_engine(url if url.drivername == "sqlite" else url.set(drivername="postgresql+psycopg"))


def build(address: str, revision: str) -> None:
    """Make the store that the program of a revision would have made, with one finished pair in it."""
    with closing(engine(address).connect()) as connection:
        migrate(connection, revision)
        if revision == "0001":  # its program knew nothing of Alembic
            connection.exec_driver_sql("DROP TABLE alembic_version")
        tables = sa.MetaData()
        tables.reflect(connection)
        for table, rows in contents().items():
            known = tables.tables[table].columns.keys()
            rows = [{name: value for name, value in row.items() if name in known} for row in rows]
            connection.execute(tables.tables[table].insert(), rows)
        connection.exec_driver_sql("CREATE VIEW v_results AS SELECT dataset FROM arm")
        connection.commit()


def contents() -> dict[str, list[dict[str, Any]]]:
    arms, evals, steps = [], [], []
    for key, arm in enumerate(PAIR.arms, start=1):
        state = {"status": "done", "attempt": 1, "step": 40, "wall_s": 2.0, "created_at_us": now_us()}
        hashes = dict.fromkeys(("init_sha256", "batch_sha256", "data_sha256"), "same")
        arms.append(arm.model_dump() | {"id": key, "fingerprint": arm.id, "name": arm.name} | state | hashes)
        row = {"arm_id": key, "step": 40, "attempt": 1, "time_us": 1}
        evals.append(row | {"split": "val", "loss": 3.0 - key, "loss_kind": 0, "n_tokens": 64})
        kinds = {"train_loss_kind": 2, "grad_norm_kind": 0, "grad_norm": 1.0}
        steps.append(row | {"train_loss": None, "lr": 1e-3, "tok_per_s": 1.0} | kinds)
    times = {"created_at_us": now_us(), "updated_at_us": now_us()}
    trial = {"id": 1, "fingerprint": PAIR.id, "sa_arm_id": 1, "xsa_arm_id": 2, "created_at_us": now_us()}
    attempt = {"arm_id": 2, "no": 1, "status": "done", "owner": "one", "started_at_us": 1, "dirty": True}
    return {
        "sweep": [{"id": 1, "name": "small", "description": "", "source": "", "storage": "runs"} | times],
        "arm": arms,
        "trial": [trial],
        "sweep_trial": [{"sweep_id": 1, "trial_id": 1, "ordinal": 0}],
        "attempt": [attempt],
        "arm_eval": evals,
        "arm_step": steps,
    }


def check_contents(address: str) -> None:
    with Database(address) as db:
        (pair,) = db.pairs("small").to_dict("records")
        assert (pair["status"], pair["delta_val_loss"], pair["step"]) == ("done", -1.0, 40)
        assert {name: pair[name] for name in AXES} == PAIR.xsa.model_dump()
        assert db.curves().train_loss.tolist() == [float("inf")] * 2
        attempts = db.sql("SELECT * FROM v_attempts")
        assert attempts.attempt.tolist() == [1] and attempts.peak_gpu_bytes.isna().all()
        assert attempts.execution.isna().all() and attempts.mfu.isna().all()
        assert db.sql("SELECT * FROM v_status").arms.tolist() == [2]


def test_the_newest_revision_is_that_of_the_schema() -> None:
    assert revisions()[-1] == schema.REVISION


def shape(connection: sa.Connection) -> dict[str, Any]:
    """Return everything about the tables but comments, defaults of axes and the order of columns."""
    inspector = sa.inspect(connection)
    return {
        table: {
            "columns": {
                column["name"]: (str(column["type"].compile(connection.dialect)), column["nullable"])
                + ((column["default"],) if column["name"] not in AXES else ())
                for column in inspector.get_columns(table)
            },
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": sorted(map(str, inspector.get_foreign_keys(table))),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": sorted(map(str, inspector.get_check_constraints(table))),
            "indices": sorted(map(_index, inspector.get_indexes(table))),
            "options": inspector.get_table_options(table),
        }
        for table in inspector.get_table_names()
    }


def _index(index: Any) -> str:
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return str({**index, "dialect_options": options})


@ON_BOTH
@EARLIER
def test_a_store_of_each_earlier_revision_is_brought_up_to_date(
    new: str, store: Store, revision: str
) -> None:
    build(new, revision)
    with pytest.raises(StoreError, match="older than this version of xsa"):
        Store.open(new)
    with Store.open(new, mode="write") as opened:
        (note,) = opened.notes
        assert f"was brought from revision {revision} to {schema.REVISION}" in note
        if opened.path:
            assert f"new.db.{revision}.backup is a copy of it as it was" in note
        with opened.read() as connection, store.read() as fresh:
            assert shape(connection) == shape(fresh)
    check_contents(new)
    with Store.open(new, mode="write") as again:
        assert not again.notes


@ON_BOTH
def test_several_may_upgrade_at_once(new: str, tmp_path: Path) -> None:
    build(new, "0001")
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: Store.open(new, mode="write"), range(8)))
    assert sum(len(opened.notes) for opened in stores) == 1
    for opened in stores:
        opened.close()
    check_contents(new)
    assert len(list(tmp_path.glob("*.backup*"))) == (0 if "://" in new else 1)


def test_the_copy_is_whole_and_no_other_is_overwritten(new: str, tmp_path: Path) -> None:
    build(new, "0001")
    Path(new).chmod(0o600)
    with closing(sqlite3.connect(new)) as connection:
        before = list(connection.iterdump())
    taken = tmp_path / "new.db.0001.backup"
    taken.write_text("mine")
    Store.open(new, mode="write").close()
    assert taken.read_text() == "mine"
    copy = tmp_path / "new.db.0001.backup2"
    assert copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as connection:
        assert list(connection.iterdump()) == before
    assert {path.name for path in tmp_path.iterdir()} == {"new.db", taken.name, copy.name}


@ON_BOTH
def test_an_upgrade_that_fails_changes_nothing(
    new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(new, "0001")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="nowhere"):
        patch.setitem(
            upgrade.VIEWS, "v_status", "SELECT nowhere nowhere nowhere"
        )  # the last thing that is made
        Store.open(new, mode="write")
    with closing(engine(new).connect()) as connection:
        assert "alembic_version" not in sa.inspect(connection).get_table_names()
        assert connection.exec_driver_sql("SELECT version FROM schema_meta").scalars().all() == [1]
    assert {path.name for path in tmp_path.iterdir()} <= {"new.db"}
    Store.open(new, mode="write").close()
    check_contents(new)


def test_a_store_that_cannot_be_copied_is_left_as_it_is(
    new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(new, "0001")
    before = Path(new).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(upgrade.shutil, "copymode", full)
    with pytest.raises(StoreError, match=r"no copy of it could be made .*No space left .*make room"):
        Store.open(new, mode="write")
    assert [path.name for path in tmp_path.iterdir()] == ["new.db"]
    assert Path(new).read_bytes() == before
