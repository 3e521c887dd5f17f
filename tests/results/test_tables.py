import math
from pathlib import Path

import pytest

from results.frames import MissingData
from results.query import Database
from results.record import save_sweep
from results.render import Column, Table, interval, number, p_value, signed
from results.stats import LACKING, seeds_needed
from results.store import Store
from results.tables import TABLES, save
from tests.conftest import fill, make_sweep
from tests.results.measured import tell_evals

LOSSES, TABLE1 = TABLES["losses"].load(), TABLES["table1"].load()


@pytest.mark.parametrize("name", TABLES)
def test_table_is_written_in_every_form(name: str, store: Store, filled: Database, tmp_path: Path) -> None:
    if name == "table2":
        tell_evals(store, make_sweep())
    paths = TABLES[name].save(filled, tmp_path, sweep="small")
    assert [path.suffix for path in paths] == [".txt", ".md", ".tex", ".csv"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize("name", TABLES)
def test_table_of_nothing_says_what_it_needs(name: str, store: Store) -> None:
    file = TABLES[name].load()
    with Database(store.path) as empty, pytest.raises(MissingData, match="there is none"):
        file.draw(file.data(empty))


def test_losses_has_a_row_for_each_lambda(filled: Database) -> None:
    frame = LOSSES.data(filled, "small")
    assert frame["xsa_lambda"].tolist() == [0.0, 0.5, 1.0]
    assert frame["n"].tolist() == [3, 3, 3]
    pairs = filled.pairs("small", xsa_lambda=1.0)
    assert frame["delta"].iloc[2] == pytest.approx(pairs["delta_val_loss"].mean())


def test_losses_say_how_many_seeds_a_difference_takes(filled: Database) -> None:
    frame = LOSSES.data(filled, "small")
    caption = LOSSES.draw(frame).caption
    # the settings' sd, pooled with 2 degrees of freedom each; λ = 0 has none
    sd = (frame["sd"][1:] ** 2).mean() ** 0.5
    assert f"spread of the paired differences (sd {sd:.2g}, 4 degrees of freedom), a t-test at" in caption
    assert "at 0.05/2, as Holm's correction asks of the smallest of 2 p, sees a true difference of" in caption
    assert f"0.01 nats/token with a power of 0.8 from n = {seeds_needed(0.01, sd, 2)} seeds on." in caption
    one = LOSSES.draw(LOSSES.data(filled, "small", xsa_lambda=1)).caption
    assert "a t-test sees a true difference" in one


def test_losses_of_one_seed_promise_nothing(filled: Database) -> None:
    assert "a t-test" not in LOSSES.draw(LOSSES.data(filled, "small", seed=0)).caption


def test_table1_has_a_row_for_each_size_beside_the_papers(store: Store, tmp_path: Path) -> None:
    sweep = make_sweep(grid={"model_size": ["1.3B", "toy"], "lr": [4e-4, 1e-3]}, seeds=[0])
    save_sweep(store, sweep, sweep.trials(), tmp_path)
    with Database(store.path) as db:
        table = TABLE1.draw(TABLE1.data(db))
    assert [column.head for column in table.columns][-4:] == [
        "non-embedding",
        "parameters",
        "paper's learning rate",
        "paper's size",
    ]
    assert [list(row) for row in table.rows] == [
        ["toy", "2", "128", "2", "64", "0.0004, 0.001", "393,216", "—", "—", "—"],
        ["1.3B", "24", "2,048", "24", "128", "0.0004, 0.001", "1,409,286,144", "—", "0.0004", "1.4B"],
    ]
    assert "The paper's values are those of arXiv:2603.09078v1, Table 1." in table.caption


def test_table1_counts_shared_keys_and_what_the_arms_reported(store: Store, tmp_path: Path) -> None:
    fill(store, make_sweep(grid={"n_kv_head": [1, 2]}, seeds=[0]), tmp_path)
    with Database(store.path) as db:
        frame = TABLE1.data(db)
    table = TABLE1.draw(frame)
    assert [row[5] for row in table.rows] == ["1", "2"]
    assert [list(row[-2:]) for row in table.rows] == [["360,448", "1,234"], ["393,216", "1,234"]]
    assert "paper" not in str(table.columns)
    assert TABLE1.draw(frame.assign(most=2_000)).rows[0][-1] == "1,234 to 2,000"


def test_the_lower_loss_is_in_bold(filled: Database) -> None:
    table = LOSSES.draw(LOSSES.data(filled, "small"))
    assert table.best == {(1, 3), (2, 3)}  # XSA's, and neither where it is SA itself
    assert "**3.4" in table.markdown() or r"\textbf{" in table.latex()


def test_lambda_zero_is_no_evidence(filled: Database) -> None:
    row = LOSSES.draw(LOSSES.data(filled, "small")).rows[0]
    assert row[-1] == "SA itself"
    assert row[4:7] == ["0", "—", "—"]


def test_notes_name_what_is_missing(troubled: Database) -> None:
    notes = LOSSES.data(troubled, "small").set_index("xsa_lambda")["note"]
    assert "1 diverged" in notes[0.5]
    assert notes[1.0] == "n = 1, no interval; 1 failed; 1 missing"


def test_an_interval_with_zero_is_noted() -> None:
    values = {"xsa_lambda": 1.0, "n": 3, "delta": -0.1, "low": -0.3, "high": 0.1, "p_holm": 0.4}
    row = values | dict.fromkeys(LACKING, 0)
    assert LOSSES.note(row) == "interval contains 0"  # type: ignore[attr-defined]


def test_numbers_read_well() -> None:
    assert number(3.48391) == "3.4839"
    assert signed(-0.01234) == "−0.0123"
    assert interval(-0.015, 0.0063) == "[−0.0150, +0.0063]"
    assert [p_value(p) for p in (0.0001, 0.0123, 0.0996, 0.5)] == ["<0.001", "0.012", "0.10", "0.50"]
    assert [number(math.nan), signed(math.nan), interval(math.nan, math.nan), p_value(math.nan)] == ["—"] * 4


TABLE = Table(
    "x", "Title", "50 % of a_b", [Column("λ"), Column("note", "left")], [["1", "a|b & <c>"], ["10", ""]]
)


def test_text_is_aligned() -> None:
    assert TABLE.text().splitlines()[2:6] == [
        " λ  note",
        "──  ─────────",
        " 1  a|b & <c>",
        "10",
    ]


def test_markdown_is_escaped() -> None:
    assert r"| 1 | a\|b & \<c> |" in TABLE.markdown()
    assert "| ---: | :--- |" in TABLE.markdown()


def test_latex_is_escaped() -> None:
    latex = TABLE.latex()
    assert r"1 & a|b \& $<$c$>$ \\" in latex
    assert r"\caption{\textbf{Title} 50 \% of a\_b}" in latex
    assert latex.count(r"\toprule") == latex.count(r"\midrule") == latex.count(r"\bottomrule") == 1


def test_best_cells_are_bold_and_groups_are_apart() -> None:
    rows = [["a", "1 %"], ["b", "2 %"]]
    caption = "Means. Bold: the lower one. Of 2."
    table = Table("x", "Title", caption, [Column("λ"), Column("p")], rows, best={(1, 1)}, groups={1})
    assert table.text().endswith("\nMeans. Of 2.\n")
    assert table.markdown().endswith(f"\n{caption}\n")
    assert r"b & \textbf{2 \%} \\" in table.latex() and r"\addlinespace" in table.latex()
    assert "| b | **2 %** |" in table.markdown()
    assert table.text().splitlines()[4:7] == ["a  1 %", "", "b  2 %"]


def test_csv_holds_the_numbers(filled: Database, tmp_path: Path) -> None:
    frame = LOSSES.data(filled, "small")
    path = save(LOSSES.draw(frame), tmp_path, "losses", frame)[-1]
    assert path.read_text().startswith(
        "xsa_lambda,n,n_diverged,n_refused,n_failed,n_missing,sa,xsa,delta,sd,low,high,p,p_holm,note\n"
    )
