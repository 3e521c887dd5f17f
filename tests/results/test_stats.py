import math

import numpy as np
import pandas as pd
import pytest

from results.stats import (
    LACKING,
    holm,
    mean_interval,
    paired,
    power,
    seeds_needed,
    spread,
    summarise,
    verdict,
)
from schemas.trial import Trial

NAN = math.nan


def test_paired_agrees_with_a_case_computed_by_hand() -> None:
    # mean -2, sd 1; t(0.975, 2) = 4.30265; p at 2 degrees of freedom is 1 - t / sqrt(t^2 + 2), t^2 = 12
    found = paired([-1.0, -2.0, -3.0])
    assert (found.n, found.diverged, found.mean, found.sd) == (3, 0, -2.0, 1.0)
    assert found.low == pytest.approx(-2 - 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.high == pytest.approx(-2 + 4.302653 / math.sqrt(3), abs=1e-6)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14), abs=1e-12)


def test_one_difference_has_a_mean_and_no_interval() -> None:
    found = paired([-0.25])
    assert (found.n, found.mean) == (1, -0.25)
    assert all(map(math.isnan, (found.sd, found.low, found.high, found.p)))


def test_no_difference_has_nothing() -> None:
    found = paired([])
    assert (found.n, found.diverged) == (0, 0)
    assert all(map(math.isnan, found[2:]))


def test_differences_that_are_not_finite_are_counted_apart() -> None:
    found = paired([1.0, NAN, 3.0, math.inf])
    assert (found.n, found.diverged, found.mean) == (2, 2, 2.0)


def test_equal_differences_claim_no_certainty() -> None:
    # 0.3 - 0.2 and 0.2 - 0.1 differ by rounding alone
    found = paired([0.3 - 0.2, 0.2 - 0.1, 0.1])
    assert (found.n, found.sd) == (3, 0.0)
    assert math.isnan(found.low) and math.isnan(found.p)
    assert math.isnan(paired([0.0, 0.0]).p)


def test_interval_covers_the_truth_and_p_is_uniform_under_it() -> None:
    draws = np.random.default_rng(0).normal(0.5, 2.0, size=(3000, 4))
    found = [paired(row - 0.5) for row in draws]
    assert np.mean([f.low <= 0 <= f.high for f in found]) == pytest.approx(0.95, abs=0.012)
    assert np.mean([f.p < 0.2 for f in found]) == pytest.approx(0.2, abs=0.025)
    assert all((f.p < 0.05) == (not f.low <= 0 <= f.high) for f in found)


def test_a_single_arm_has_the_interval_of_its_mean() -> None:
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - found.mean == pytest.approx(4.302653 / math.sqrt(3), abs=1e-6)


def test_holm_steps_down_and_stays_monotone() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


def test_holm_does_not_count_what_is_no_test() -> None:
    corrected = holm([NAN, 0.02, 0.5])
    assert math.isnan(corrected[0])
    assert corrected[1:] == pytest.approx([0.04, 0.5])
    assert holm([]) == []


def pairs(*rows: tuple[float, int, str, float]) -> pd.DataFrame:
    """Pairs of (λ, seed, status, delta) with an SA loss of 3."""
    settings = Trial().model_dump()
    return pd.DataFrame(
        settings
        | {"xsa_lambda": lam, "seed": seed, "status": status}
        | {"sa_val_loss": 3.0 + seed, "xsa_val_loss": 3.0 + seed + delta, "delta_val_loss": delta}
        for lam, seed, status, delta in rows
    )


def test_summary_counts_what_it_leaves_out() -> None:
    frame = summarise(
        pairs(
            (1.0, 0, "done", -0.1),
            (1.0, 1, "done", -0.3),
            (1.0, 2, "done", NAN),
            (1.0, 3, "diverged", -9.0),
            (1.0, 4, "running", -9.0),
            (1.0, 5, "pending", NAN),
            (1.0, 6, "failed", NAN),
            *((1.0, seed, "refused", -9.0) for seed in (7, 8, 9)),
        ),
        ["xsa_lambda"],
    )
    row = frame.iloc[0]
    assert row[["n", *LACKING]].tolist() == [2, 2, 3, 1, 2]
    assert row["delta"] == pytest.approx(-0.2)
    assert row["sa"] == pytest.approx(3.5)  # over the pairs that delta is over, not over all SA arms
    assert row["xsa"] == pytest.approx(3.3)
    assert row["sd"] == pytest.approx(math.sqrt(0.02))


def test_summary_corrects_over_its_rows() -> None:
    rows = [(lam, seed, "done", lam * (-0.1 - 0.01 * seed)) for lam in (0.5, 1.0) for seed in range(3)]
    frame = summarise(pairs(*rows), ["xsa_lambda"])
    assert frame["xsa_lambda"].tolist() == [0.5, 1.0]
    assert frame["p_holm"].tolist() == pytest.approx((2 * frame["p"]).tolist())


def test_summary_of_nothing_is_empty() -> None:
    assert summarise(pairs((1.0, 0, "done", 0.0)).iloc[:0], ["xsa_lambda"]).empty


def test_power_agrees_with_a_case_computed_by_hand() -> None:
    # Two differences with true mean m and sd 1: their sample sd u is half-normal and independent of their mean, so
    # P(t > c) is the mean over u of P(Z > c u - m sqrt(2)).
    c, m = 12.706204736, 3.0
    u = (np.arange(400_000) + 0.5) / 50_000  # to 8 sd
    density = math.sqrt(2 / math.pi) * np.exp(-(u**2) / 2) / 50_000
    above = 0.5 * np.array([math.erfc(x) for x in ((c * u - m * math.sqrt(2)) / math.sqrt(2))[:40_000]])
    expected = float((above * density[:40_000]).sum())  # beyond, and for t < -c, it is below 1e-6
    assert power(2, m, 1.0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (-1.0, 10), (50.0, 2)]
)
def test_seeds_needed_are_those_of_the_textbook(effect: float, n: int) -> None:
    # Cohen (1988): a two-sided paired t-test at 0.05 with a power of 0.8
    assert seeds_needed(effect, 1.0) == n
    assert seeds_needed(0.003 * effect, 0.003) == n


def test_the_least_number_of_seeds_sees_the_effect_and_one_fewer_does_not() -> None:
    n = seeds_needed(1.5, 1.0)
    draws = np.random.default_rng(1).normal(1.5, 1.0, size=(4000, n))
    seen = [np.mean([paired(row[:k]).p < 0.05 for row in draws]) for k in (n - 1, n)]
    assert seen[0] < 0.8 <= seen[1] + 0.02
    assert seen == pytest.approx([power(n - 1, 1.5, 1.0), power(n, 1.5, 1.0)], abs=0.02)


def test_seeds_are_counted_at_the_level_of_holm_s_first_step() -> None:
    n = seeds_needed(0.01, 0.02, 20)
    assert n > seeds_needed(0.01, 0.02) == seeds_needed(0.01, 0.02, 1)
    draws = np.random.default_rng(1).normal(0.01, 0.02, size=(4000, n))
    seen = np.mean([holm([paired(row).p, *[0.9] * 19])[0] < 0.05 for row in draws])
    assert seen == pytest.approx(power(n, 0.01, 0.02, 20), abs=0.02) and seen > 0.78


def test_spread_is_pooled_over_rows_that_have_one() -> None:
    rows = {"n": [3, 2, 1, 3], "sd": [1.0, 2.0, NAN, 0.0]}
    assert spread(pd.DataFrame(rows)) == (pytest.approx(math.sqrt((2 * 1 + 1 * 4) / 3)), 3)
    sd, freedom = spread(pd.DataFrame({"n": [1], "sd": [NAN]}))
    assert math.isnan(sd) and freedom == 0


@pytest.mark.parametrize(
    ("n", "delta", "low", "high", "p_holm", "said"),
    [
        (3, -0.1, -0.2, -0.01, 0.04, "lower"),
        (3, 0.1, 0.01, 0.2, 0.04, "higher"),
        (3, -0.1, -0.2, -0.01, 0.06, "uncorrected"),
        (3, -0.1, -0.3, 0.1, 0.3, "inconclusive"),
        (1, -0.1, NAN, NAN, NAN, "no interval"),
        (0, NAN, NAN, NAN, NAN, "no pairs"),
    ],
)
def test_verdict_claims_only_what_the_interval_allows(
    n: int, delta: float, low: float, high: float, p_holm: float, said: str
) -> None:
    assert verdict(n=n, delta=delta, low=low, high=high, p_holm=p_holm) == said
