"""`xsa plan --ids` and `--explain`: ids before any run, and what tells two arms apart."""

import json
from pathlib import Path

import pytest

from orchestrator.explain import explain
from orchestrator.find import find
from orchestrator.plan import Plan
from results import schema
from results.query import Database
from results.store import Store
from schemas.errors import UserError
from schemas.trial import Arm
from tests.conftest import SMALL, make_sweep
from tests.orchestrator.conftest import Xsa
from tests.orchestrator.test_cli import SWEEP

TRIALS = {(trial.xsa_lambda, trial.seed): trial for trial in make_sweep().trials()}


@pytest.fixture(autouse=True)
def wider(tmp_path: Path) -> None:
    """A sweep file with seeds 2 and 3, of which a filled store has seeds 0 to 2."""
    (tmp_path / "s.yaml").write_text(
        SWEEP.replace("name: small", "name: wider").replace("[0, 1, 2]", "[2, 3]")
    )


def test_ids_are_there_before_any_run(xsa: Xsa) -> None:
    code, output, _ = xsa("plan", "s.yaml", "--ids")
    assert code == 0
    assert len(output.splitlines()) == 6
    assert f"{TRIALS[0.5, 2].xsa.id[:12]}  xsa λ=0.5 seed=2  new" in output.splitlines()


def test_ids_come_with_where_the_arms_stand(xsa: Xsa, troubled: Database) -> None:
    rows = json.loads(xsa("plan", "s.yaml", "--ids", "--json")[1])
    assert {row["label"]: row["status"] for row in rows} == {
        "sa seed=2": "done",
        "sa seed=3": "new",
        "xsa λ=0.5 seed=2": "done",
        "xsa λ=0.5 seed=3": "new",
        "xsa λ=1 seed=2": "running",
        "xsa λ=1 seed=3": "new",
    }
    assert {"arm": TRIALS[1, 2].xsa.id[:12], "label": "xsa λ=1 seed=2", "status": "running"} in rows


def test_a_size_is_named_and_its_numbers_are_not(xsa: Xsa, tmp_path: Path) -> None:
    (tmp_path / "sizes.yaml").write_text(SWEEP.replace("xsa_lambda: [0, 0.5, 1]", "model_size: [toy, 10M]"))
    assert "  sa model_size=10M seed=1  " in xsa("plan", "sizes.yaml", "--ids")[1]


def test_explain_names_each_field_that_differs() -> None:
    a, b = Arm(**SMALL, seed=1), Arm(**SMALL | {"seq_len": 32}, lr=3e-4, seed=1)
    assert explain(a, b) == [("seq_len", 16, 32), ("lr", 1e-3, 3e-4)]
    assert explain(a, a) == []


def test_an_arm_of_the_sweep_against_one_of_the_store(xsa: Xsa, filled: Database) -> None:
    old, new = TRIALS[0.5, 0].xsa, next(t for t in make_sweep(seeds=[3]).trials() if t.xsa_lambda == 1).xsa
    code, output, _ = xsa("plan", "s.yaml", "--explain", old.id[:8], new.id.upper())
    assert code == 0
    lines = [line.split() for line in output.splitlines() if line]
    assert lines == [
        ["A", old.id[:12], "xsa", "arm", "of", "results.db"],
        ["B", new.id[:12], "xsa", "arm", "of", "wider"],
        ["field", "A", "B", "type"],
        ["xsa_lambda", "0.5", "1", "float"],
        ["seed", "0", "3", "int"],
    ]
    document = json.loads(xsa("plan", "s.yaml", "--explain", old.id, new.id, "--json")[1])
    assert document["same"] is False
    assert document["differences"][1] == {"field": "seed", "a": 0, "b": 3, "type": "int"}
    assert document["a"] == {"kind": "arm", "id": old.id, "where": "results.db"}


def test_trials_are_told_by_their_xsa_arms(xsa: Xsa, filled: Database) -> None:
    a, b = TRIALS[0.5, 2], TRIALS[1, 2]
    output = xsa("plan", "s.yaml", "--explain", a.id, b.id)[1]
    assert "trial, by its XSA arm, of wider" in output
    assert "xsa_lambda  0.5  1  float" in output
    same = xsa("plan", "s.yaml", "--explain", a.id, a.xsa.id)[1]
    assert f"{a.xsa.id[:12]} is the XSA arm of the trial {a.id[:12]}." in same
    assert "They are the same trial." in xsa("plan", "s.yaml", "--explain", a.id, a.id[:9])[1]
    assert "They are the same arm." in xsa("plan", "s.yaml", "--explain", a.sa.id, a.sa.id)[1]


def test_arms_that_other_code_trained_are_not_called_the_same(
    xsa: Xsa, store: Store, filled: Database
) -> None:
    old = "ab" * 32
    ours = TRIALS[1, 0].xsa.id
    with store.write() as connection:
        connection.execute(
            schema.arm.update().where(schema.arm.c.fingerprint == ours).values(fingerprint=old)
        )
    (Path("s.yaml")).write_text(SWEEP)
    assert "semantics_version" in xsa("plan", "s.yaml", "--explain", old, ours)[1]


def test_the_sweep_comes_before_the_store(filled: Database) -> None:
    sweep = make_sweep(seeds=[0], name="narrow")
    trial = sweep.trials()[-1]
    assert find(trial.id, plan=Plan.make(sweep, {}), database=filled).where == "narrow"
    assert find(trial.id, database=filled).where == filled.store.name
    assert find(trial.id, database=filled).arm == trial.xsa
    assert find(trial.sa.id, database=filled).arm_id == trial.sa.id


def test_several_ids_with_one_beginning_are_listed(store: Store, filled: Database) -> None:
    ids = [f"abcd{number:060x}" for number in range(2)]
    with store.write() as connection:
        for key, seed in zip(ids, (0, 1), strict=True):
            which = TRIALS[1, seed].xsa.id
            connection.execute(
                schema.arm.update().where(schema.arm.c.fingerprint == which).values(fingerprint=key)
            )
    with pytest.raises(UserError) as error:
        find("abcd", database=filled)
    assert str(error.value) == (
        "'abcd' begins 2 ids: abcd00000000 (arm xsa seed=0), abcd00000000 (arm xsa seed=1). Write more digits."
    )
    assert find(ids[1], database=filled).arm.seed == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--explain", "abc", "abcd"], "'abc' is no id: write 4 or more of its hexadecimal digits."),
        (["--explain", "seed=1", "abcd"], "'seed=1' is no id"),
        (
            ["--explain", "ffffffff", "abcd"],
            "No arm or trial has an id that begins with 'ffffffff'. `xsa status",
        ),
        (["--explain", "{typo}", "abcd"], "Did you mean '{right}'?"),
        (["--ids", "--explain", "abcd", "abcd"], "--ids and --explain answer two questions"),
    ],
)
def test_a_mistake_is_one_message(arguments: list[str], message: str, xsa: Xsa) -> None:
    right = TRIALS[1, 2].xsa.id[:12]
    names = {"right": right, "typo": f"{right[:8]}{'0' if right[8] != '0' else '1'}{right[9:]}"}
    code, output, error = xsa("plan", "s.yaml", *(argument.format(**names) for argument in arguments))
    assert (code, output) == (2, "")
    assert message.format(**names) in error
    assert error.count("\n") == 1
