"""Every statistic that a figure, a table or the report states, in one place.

The unit of evidence is the paired difference: two arms with the same initial weights and batches,
XSA minus SA, so a negative difference is an improvement. Intervals are Student's t at 95 %.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from results.frames import settings

CONFIDENCE = 0.95
"""Coverage of every interval."""
ALPHA = 0.05
"""Largest corrected p at which a difference is claimed."""
EFFECT = 0.01
"""Difference, in nats/token, for which seeds are counted: half of what the paper's figures show."""
POWER = 0.8
"""Chance of seeing a true difference for which seeds are counted."""
LACKING = ("n_diverged", "n_refused", "n_failed", "n_missing")
"""Counts of the pairs that are in no mean, by reason: the first three are how they ended."""


class Interval(NamedTuple):
    """A mean and its interval. What n does not allow is NaN: `low` and `high` need n >= 2."""

    n: int
    """Finite values, those that the mean is taken over."""
    diverged: int
    """Values that are NaN or infinite, which no mean can hold."""
    mean: float
    sd: float
    """Sample standard deviation (n - 1)."""
    low: float
    high: float


class Paired(NamedTuple):
    """A mean paired difference, its interval and the p of a two-sided t-test against 0."""

    n: int
    diverged: int
    mean: float
    sd: float
    low: float
    high: float
    p: float


def mean_interval(values: Iterable[float]) -> Interval:
    """Return the mean of one arm's values over seeds, with its t interval.

    Identical values (a spread of rounding errors alone) get no interval: an sd of 0 would claim
    certainty that n repeats of one number cannot give.
    """
    given = np.asarray(list(values), dtype=float)
    finite = given[np.isfinite(given)]
    n, diverged = len(finite), len(given) - len(finite)
    if n == 0:
        return Interval(0, diverged, math.nan, math.nan, math.nan, math.nan)
    mean = float(finite.mean())
    if n == 1:
        return Interval(1, diverged, mean, math.nan, math.nan, math.nan)
    if np.ptp(finite) <= 1e-12 * np.abs(finite).max():
        return Interval(n, diverged, mean, 0.0, math.nan, math.nan)
    sd = float(finite.std(ddof=1))
    half = _critical(n) * sd / math.sqrt(n)
    return Interval(n, diverged, mean, sd, mean - half, mean + half)


def mean_range(values: Iterable[float]) -> Interval:
    """Return the mean of one arm's values over seeds, with the least and the greatest as its ends.

    For levels, which seeds share a large part of and nobody tests: with two or three seeds their t
    interval is many times as wide as anything that was seen, and of a cosine it goes beyond 1.
    """
    given = np.asarray(list(values), dtype=float)
    found = mean_interval(given)
    if found.n < 2:
        return found
    finite = given[np.isfinite(given)]
    return found._replace(low=float(finite.min()), high=float(finite.max()))


@cache
def _critical(n: int) -> float:
    """Half width of the interval of n values, in standard errors."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))


def paired(deltas: Iterable[float]) -> Paired:
    """Return the mean of paired differences with interval and p, NaN where n does not allow them."""
    found = mean_interval(deltas)
    p = math.nan
    if not math.isnan(found.low):
        p = float(2 * stats.t.sf(abs(found.mean) / (found.sd / math.sqrt(found.n)), found.n - 1))
    return Paired(*found, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's step-down corrected p-values, in the order given.

    Valid under any dependence, such as that of rows that share their SA arms. A NaN is no test: it
    stays NaN and is not counted.
    """
    corrected = [math.nan] * len(p_values)
    tests = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * p))
        corrected[i] = largest
    return corrected


def summarise(pairs: pd.DataFrame, by: Sequence[str], *, value: str = "val_loss") -> pd.DataFrame:
    """Summarise pairs over their seeds: one row for each combination of the axes `by`.

    Args:
        pairs: one row a pair, as `db.pairs()` gives it.
        by: axes that tell rows apart; all that vary but the seed, or unlike things are averaged.
        value: `val_loss` or `train_loss`.

    Returns:
        The axes, then `n` (finished pairs with a finite difference), `n_diverged`, `n_refused` (whose arms
        did not begin alike), `n_failed`, `n_missing` (not finished), the means `sa` and `xsa` over these n,
        `delta`, its `sd`, `low`, `high`, `p`, and `p_holm`, corrected over all rows.
    """
    rows = []
    for values, group in settings(pairs, by):
        done = group[group["status"] == "done"]
        delta = paired(done[f"delta_{value}"])
        finite = done[np.isfinite(done[f"delta_{value}"].to_numpy(dtype=float))]
        ended = {name: int((group["status"] == name).sum()) for name in ("diverged", "refused", "failed")}
        rows.append(
            values
            | {
                "n": delta.n,
                "n_diverged": delta.diverged + ended["diverged"],
                "n_refused": ended["refused"],
                "n_failed": ended["failed"],
                "n_missing": len(group) - len(done) - sum(ended.values()),
                "sa": finite[f"sa_{value}"].mean(),
                "xsa": finite[f"xsa_{value}"].mean(),
                "delta": delta.mean,
                "sd": delta.sd,
                "low": delta.low,
                "high": delta.high,
                "p": delta.p,
            }
        )
    columns = [*by, "n", *LACKING, "sa", "xsa", "delta", "sd", "low", "high", "p"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["p_holm"] = holm([float(p) for p in frame["p"]])
    return frame


def spread(summary: pd.DataFrame) -> tuple[float, int]:
    """Return the sd of paired differences, pooled over rows of `summarise`, and its degrees of freedom.

    NaN and 0 where no row has a spread.
    """
    rows = summary[summary["sd"] > 0]
    freedom = rows["n"] - 1
    total = int(freedom.sum())
    return (math.sqrt((freedom * rows["sd"] ** 2).sum() / total) if total else math.nan), total


def power(n: int, effect: float, sd: float, tests: int = 1) -> float:
    """Return the chance that a two-sided paired t-test of n differences sees a true mean of `effect`.

    It is one of so many `tests`, and made at `ALPHA / tests`, which Holm's correction asks of the smallest p.
    """
    alpha = ALPHA / tests
    shift, critical = abs(effect) / sd * math.sqrt(n), float(stats.t.ppf(1 - alpha / 2, n - 1))
    # The noncentral t; at or beyond the other critical value it has found the wrong sign, which counts for the test.
    return float(stats.nct.sf(critical, n - 1, shift) + stats.nct.cdf(-critical, n - 1, shift))


def seeds_needed(effect: float, sd: float, tests: int = 1) -> int:
    """Return the least number of paired seeds with which a test sees `effect` with a power of `POWER`.

    Args:
        effect: true mean difference, not 0.
        sd: standard deviation of the paired differences, above 0.
        tests: how many Holm's correction is over; where others see something too, fewer seeds may do.
    """
    # A test that knew sd would need at least this many; from there t needs a few more.
    known = sum(float(stats.norm.ppf(p)) for p in (1 - ALPHA / tests / 2, POWER)) * sd / abs(effect)
    n = max(2, math.floor(known**2))
    while power(n, effect, sd, tests) < POWER:
        n += 1
    return n


Verdict = Literal["lower", "higher", "uncorrected", "inconclusive", "no interval", "no pairs"]
"""What a mean difference allows one to say about XSA's loss against SA's."""


def verdict(*, n: int, delta: float, low: float, high: float, p_holm: float) -> Verdict:
    """Return what may be said of one row of `summarise`.

    `lower` and `higher` need an interval without 0 and a corrected p below `ALPHA`; where only the
    interval excludes 0 the difference did not survive the correction: `uncorrected`.
    """
    if n == 0:
        return "no pairs"
    if math.isnan(low):
        return "no interval"
    if low <= 0 <= high:
        return "inconclusive"
    if not p_holm < ALPHA:
        return "uncorrected"
    return "lower" if delta < 0 else "higher"
