import math
import time

import numpy as np
import pytest
from scipy import stats

from results.stats_items import average_se, item_difference, mcnemar, unpaired_se

NAN = math.nan


def flips(better: int, worse: int, same: int = 0) -> np.ndarray:
    return np.array([1.0] * better + [-1.0] * worse + [0.0] * same)


def test_mcnemar_agrees_with_cases_computed_by_hand() -> None:
    assert mcnemar(flips(3, 0, 9)) == pytest.approx(2 / 8)
    assert mcnemar(flips(1, 4)) == pytest.approx(2 * (1 + 5) / 32)
    assert mcnemar(flips(2, 2, 1)) == 1.0


@pytest.mark.parametrize(("better", "worse"), [(10, 25), (300, 260), (0, 40), (1600, 1400)])
def test_mcnemar_is_the_exact_binomial_test_of_the_items_that_differ(better: int, worse: int) -> None:
    expected = stats.binomtest(better, better + worse).pvalue
    assert mcnemar(flips(better, worse, 500)) == pytest.approx(expected, abs=1e-12)


def test_mcnemar_of_several_seeds_weighs_an_item_by_its_seeds() -> None:
    # sums of two seeds: +2, +1, -1; of the 8 ways to choose signs, |sum| >= 2 in 6
    assert mcnemar(np.array([2.0, 1.0, -1.0, 0.0])) == pytest.approx(6 / 8)


@pytest.mark.parametrize(("n", "seeds"), [(10_042, 3), (20_000, 5)])
def test_p_of_a_large_task_over_seeds_is_a_chance(n: int, seeds: int) -> None:
    rng = np.random.default_rng(0)
    for right in (0.05, 0.07, 0.15):  # of which the last differs more than a float can say
        chances = [0.04, 0.96 - right, right]
        summed = sum(rng.choice([-1.0, 0.0, 1.0], size=n, p=chances) for _ in range(seeds))
        assert 0 < mcnemar(summed) <= 1


def test_a_small_p_is_as_exact_as_a_large_one() -> None:
    # all of one sign: only these signs and their reverse go as far
    assert mcnemar(np.array([41.0] * 100 + [40.0] * 100)) == pytest.approx(2 / 2**200, rel=1e-9, abs=0)


def test_mcnemar_says_nothing_without_a_difference_or_of_what_is_not_right_or_wrong() -> None:
    assert math.isnan(mcnemar(np.zeros(9)))
    assert math.isnan(mcnemar(np.array([])))
    assert math.isnan(mcnemar(np.array([0.5, -1.0])))


def test_p_is_no_smaller_than_it_should_be_under_no_difference() -> None:
    rng = np.random.default_rng(0)
    p = [mcnemar(rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0], size=200)) for _ in range(1000)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.02)


def test_difference_agrees_with_a_case_computed_by_hand() -> None:
    found = item_difference(flips(30, 10, 60))
    assert found.mean == pytest.approx(0.2)
    assert found.se == pytest.approx(math.sqrt((0.4 - 0.04) / 99))
    # the distribution of the resampled mean is nearly normal here
    assert (found.low, found.high) == pytest.approx((0.2 - 1.96 * found.se, 0.2 + 1.96 * found.se), abs=0.012)
    assert found == item_difference(flips(30, 10, 60)[::-1])


def test_bootstrap_draws_what_drawing_items_would() -> None:
    given = flips(30, 10, 60)
    drawn = np.random.default_rng(1).choice(given, size=(20_000, len(given))).mean(axis=1)
    found = item_difference(given)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.011)


def test_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(2)
    samples = rng.choice([-1.0, 0.0, 1.0], p=[0.15, 0.65, 0.2], size=(300, 250))
    found = [item_difference(sample, seed=i) for i, sample in enumerate(samples)]
    assert np.mean([f.low <= 0.05 <= f.high for f in found]) == pytest.approx(0.95, abs=0.035)


def test_too_few_items_have_no_interval() -> None:
    assert item_difference(np.array([1.0]))[0] == 1.0
    assert all(math.isnan(value) for value in item_difference(np.array([1.0]))[1:])
    assert all(math.isnan(value) for value in item_difference(np.array([])))


def test_errors_of_averages_and_of_unpaired_shares_by_hand() -> None:
    assert average_se([3.0, 4.0]) == 2.5
    assert unpaired_se(0.5, 0.5, 200) == pytest.approx(0.05)
    # pairing helps where the arms agree: of 100 items 40 differ at all
    assert item_difference(flips(30, 10, 60)).se < unpaired_se(0.5, 0.7, 100)


def test_the_largest_task_is_no_wait() -> None:
    began = time.process_time()
    differences = np.random.default_rng(3).choice([-3.0, -1.0, 0.0, 1.0, 2.0], size=10_042)
    item_difference(differences)
    mcnemar(differences)
    assert time.process_time() - began < 5, "far above what it takes on any machine"
