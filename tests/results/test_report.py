import os
import re
import shutil
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

from results import report, style
from results.findings import findings
from results.query import Database
from results.reference import published
from results.stats import LACKING, seeds_needed
from results.store import Store
from schemas.names import UnknownName
from tests.conftest import fill, make_sweep
from tests.results.measured import bench_rows, measure, tell_evals


@pytest.fixture
def page_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures on the page and not as files, which take most of a report's time."""
    monkeypatch.setattr(style, "save", lambda *_: [])


def test_report_is_one_page_with_its_files_and_the_same_twice(
    filled: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = report.write(filled, "small", tmp_path / "out")
    page = made.page.read_text()
    assert made.page == tmp_path / "out" / "report.html"
    files = {path for paths in (*made.figures.values(), *made.tables.values()) for path in paths}
    assert files | {made.page} == {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert made.figures.keys() == {"fig1", "fig3", "fig7"}
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "<script" not in page
    assert {p.name for p in (tmp_path / "out" / "tables").iterdir()} == {
        f"{name}.{suffix}" for name in ("losses", "table1") for suffix in ("txt", "md", "tex", "csv")
    }
    assert len(list((tmp_path / "out" / "figures").iterdir())) == 12
    request.getfixturevalue("page_alone")
    assert report.write(filled, "small", tmp_path / "again").page.read_text() == page


def test_report_shows_evaluations_and_blocks_where_there_are_some_and_the_paper_if_asked(
    store: Store, filled: Database, page_alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell_evals(store, make_sweep())
    measure(store, bench_rows([64, 128], [128]))
    monkeypatch.setattr(report, "FIGURES", {"fig2": report.FIGURES["fig2"]})
    plain = report.write(filled, "small", tmp_path / "plain").page.read_text()
    assert plain.count("data:image/svg+xml;base64,") == 1 and 'id="fig2"' in plain
    assert re.search(r"<td class=\"right\"><b>\d", plain) and "paper</td>" not in plain
    overlays = {"table2": published("table2")}
    beside = report.write(filled, "small", tmp_path / "beside", overlays=overlays).page.read_text()
    assert '<tr class="first"><td class="left">0.7B, paper</td>' in beside
    assert "0.4, 1.7 and 2.3 of these standard errors" in beside


def test_texts_are_escaped_and_failures_told(troubled: Database, page_alone: None, tmp_path: Path) -> None:
    page = report.write(troubled, "small", tmp_path / "out").page.read_text()
    assert "boom &lt;b&gt;" in page and "boom <b>" not in page
    assert "user_error" in page
    assert "1 pair diverged" in page


def test_a_figure_that_cannot_be_drawn_gives_its_reason(
    store: Store, page_alone: None, tmp_path: Path
) -> None:
    grid = {"xsa_lambda": [1], "lr": [1e-3, 2e-3]}
    fill(store, make_sweep(grid=grid, seeds=[0], description="<i>one</i> λ"), tmp_path / "runs")
    with Database(store.path) as db:
        page = report.write(db, "small", tmp_path / "out").page.read_text()
    assert "fig7 needs finished pairs at two or more λ; there is one (1)." in page
    assert page.count("data:image/svg+xml;base64,") == 3
    assert "against the learning rate" in page
    assert "against the sequence length" not in page and "fig5" not in page  # another sweep's figure
    assert "no evidence about another seed" in page
    assert "&lt;i&gt;one&lt;/i&gt;" in page


def test_report_of_a_sweep_that_has_not_begun(store: Store, tmp_path: Path) -> None:
    from results.record import save_sweep

    sweep = make_sweep()
    save_sweep(store, sweep, sweep.trials(), tmp_path)
    with Database(store.path) as db:
        page = report.write(db, "small", tmp_path / "out").page.read_text()
    assert "No pair of an SA and an XSA arm has finished" in page
    assert "No attempt has started." in page


def test_an_unknown_sweep_is_answered_with_the_nearest(filled: Database, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'small'"):
        report.write(filled, "smal", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def losses(*rows: tuple[float, int, float, float, float, float]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["xsa_lambda", "n", "delta", "low", "high", "p_holm"])
    return frame.assign(**dict.fromkeys(LACKING, 0), sd=0.01)


NAN = float("nan")


def test_findings_name_the_winner_and_how_sure() -> None:
    said = " ".join(findings(losses((0, 3, 0, NAN, NAN, NAN), (1.0, 3, -0.02, -0.03, -0.01, 0.004))))
    assert "XSA with λ = 1: validation loss −0.0200 nats/token against SA" in said
    assert "[−0.0300, −0.0100], n = 3 paired seeds, p = 0.004)." in said
    assert "overstate" not in said


def test_findings_claim_nothing_where_the_interval_contains_zero() -> None:
    said = " ".join(findings(losses((1.0, 3, -0.02, -0.05, 0.01, 0.2))))
    assert "neither a gain nor a loss can be claimed" in said
    assert "(sd 0.01, 2 degrees of freedom), a t-test sees a true difference of 0.02 nats/token" in said
    assert "with a power of 0.8 from n = 5 seeds on." in said


def test_seeds_are_counted_for_the_tests_that_the_rows_were_corrected_for() -> None:
    rows = [(lam, 3, -0.02, -0.05, 0.01, 0.4) for lam in (0.25, 0.5, 0.75, 1.0)]
    said = " ".join(findings(losses((0, 3, 0, NAN, NAN, NAN), *rows)))
    assert "a t-test at 0.05/4, as Holm's correction asks of the smallest of 4 p, sees" in said
    assert f"from n = {seeds_needed(0.02, 0.01, 4)} seeds on." in said and seeds_needed(0.02, 0.01, 4) > 5


def test_findings_say_of_pairs_that_are_in_no_mean_why() -> None:
    row = losses((1.0, 3, -0.02, -0.03, -0.01, 0.004))
    assert "not finished" not in " ".join(findings(row))
    said = findings(row.assign(n_diverged=1, n_refused=2, n_failed=1, n_missing=4))[-4:]
    assert [sentence.partition(";")[0].partition(",")[0].partition(":")[0] for sentence in said] == [
        "1 pair diverged",
        "2 pairs are refused and not compared",
        "1 pair failed and is not in these numbers",
        "4 pairs have not finished",
    ]
    assert ["may change" in sentence for sentence in said] == [False, False, False, True]


def test_findings_say_that_a_chosen_extreme_flatters() -> None:
    said = " ".join(findings(losses((0.5, 3, -0.02, -0.03, -0.01, 0.008), (1.0, 3, -0.01, -0.05, 0.03, 0.2))))
    assert "Of 2 settings of XSA, 1 has a lower loss than SA and 1 has an interval that contains 0." in said
    assert "The lowest mean is that of λ = 0.5" in said and "overstate" in said


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.browser
def test_report_in_a_browser_on_phone_and_desktop_in_light_and_dark(
    store: Store, troubled: Database, page_alone: None, tmp_path: Path
) -> None:
    if CHROMIUM is None:
        assert "CI" not in os.environ, "CI must have Chromium"
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    tell_evals(store, make_sweep())
    measure(store, bench_rows([64, 128], [128], ["eager", "compiled"]))
    url = report.write(
        troubled, "small", tmp_path / "out", overlays={"table2": published("table2")}
    ).page.as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for scheme, width in product(("light", "dark"), (390, 1280)):
            said: list[str] = []
            asked: list[str] = []
            page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(url)
            assert said == []
            assert [other for other in asked if not other.startswith(("data:", url))] == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            loaded = page.evaluate("[...document.images].map(i => i.complete && i.naturalWidth > 0)")
            assert loaded == [True] * 4
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
            page.close()
        browser.close()
