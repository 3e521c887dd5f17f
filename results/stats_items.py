"""Statistics of paired items: both arms of a pair answered the same questions of a task.

They say whether these trained networks differ on questions such as these, not whether other seeds would:
for that there are the tests over seeds in `results.stats`. Differences are XSA minus SA, item by item; of
several seeds they are summed over the seeds, because the seeds' arms all answered the same questions.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from results.stats import CONFIDENCE

DRAWS = 10_000
"""Resamples of a bootstrap: the ends of its interval then vary by 0.03 standard errors."""
Values: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


class ItemDifference(NamedTuple):
    """The difference in a task's score, its standard error over items and its bootstrap interval."""

    mean: float
    se: float
    low: float
    high: float


def mcnemar(differences: Sequence[float] | Values) -> float:
    """Return the two-sided p of McNemar's exact test of paired correctness.

    NaN where no item differs, and where items are not simply right or wrong.

    An item that one arm alone answered correctly is as often the one arm's as the other's, if the arms are
    alike: so the items that differ are fair coins, and p is the chance of a sum as far from 0 as that seen.
    Of differences summed over seeds (-S .. S), each item's sign is the coin and its size stays. A chance too
    small for a float is given as the smallest one above 0.

    Args:
        differences: of each item, whole numbers; of one pair, XSA's correctness (1 or 0) minus SA's.
    """
    given = np.asarray(differences, dtype=float)
    sizes = np.abs(given[given != 0])
    if not len(sizes) or (sizes != np.round(sizes)).any():
        return math.nan
    # chances[i] is that of a sum of i - reach: the coins of each size are a binomial, and the sizes add up.
    chances = np.ones(1)
    for size, count in zip(*np.unique(sizes.astype(int), return_counts=True), strict=True):
        coins = np.zeros(2 * size * count + 1)
        coins[:: 2 * size] = stats.binom.pmf(np.arange(count + 1), count, 0.5)
        chances = np.convolve(chances, coins)  # term by term: by FFT a small chance drowns in rounding errors
    reach = len(chances) // 2
    seen = abs(int(given.sum()))
    return float(np.clip(2 * chances[reach + seen :].sum(), np.nextafter(0, 1), 1)) if seen else 1.0


def item_difference(differences: Sequence[float] | Values, *, seed: int = 0) -> ItemDifference:
    """Return the mean of paired item differences with its percentile bootstrap interval over items.

    Items are drawn with replacement `DRAWS` times. How often each distinct difference is drawn is
    multinomial, which is drawn instead of the items: the same distribution, in milliseconds.

    Args:
        differences: of each item.
        seed: of the draws; the same one gives the same interval.
    """
    given = np.asarray(differences, dtype=float)
    n = len(given)
    if n < 2:
        return ItemDifference(float(given.mean()) if n else math.nan, math.nan, math.nan, math.nan)
    values, counts = np.unique(given, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(n, counts / n, size=DRAWS) @ values / n
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return ItemDifference(
        float(given.mean()), float(given.std(ddof=1) / math.sqrt(n)), float(low), float(high)
    )


def average_se(errors: Sequence[float]) -> float:
    """Return the standard error of the average over tasks, from those of the tasks: no two share an item."""
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)


def unpaired_se(p: float, q: float, n: int) -> float:
    """Return the standard error of the difference of two shares, each of n items, where no pairs are known."""
    return math.sqrt((p * (1 - p) + q * (1 - q)) / n)
