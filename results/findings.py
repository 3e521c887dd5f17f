"""A sweep's result in words, made from the numbers of the table of losses."""

from typing import Any

import pandas as pd

from results.frames import and_list, axes_in, describe
from results.render import interval, p_value, signed
from results.stats import ALPHA, EFFECT, LACKING, POWER, seeds_needed, spread, verdict

_TALLY = {
    "lower": "a lower loss than SA",
    "higher": "a higher loss than SA",
    "uncorrected": "a difference that does not survive Holm's correction",
    "inconclusive": "an interval that contains 0",
    "no interval": "no interval (one seed, or equal differences)",
    "no pairs": "no finished pair",
}


def findings(losses: pd.DataFrame) -> list[str]:
    """Return sentences that say what won, by how much and how sure that is; nothing beyond it.

    Args:
        losses: what `results.tables.losses.data` returns.
    """
    rows = [row for row in losses.to_dict("records") if row["xsa_lambda"] != 0]
    if not rows:
        return ["The sweep holds no XSA arm, so there is nothing to compare with SA."]
    verdicts = [verdict(**{k: row[k] for k in ("n", "delta", "low", "high", "p_holm")}) for row in rows]
    finished = [row for row in rows if row["n"]]
    said = []
    if not finished:
        said.append("No pair of an SA and an XSA arm has finished, so nothing can be said yet.")
    else:
        if len(rows) > 1:
            counts = {text: verdicts.count(name) for name, text in _TALLY.items()}  # type: ignore[arg-type]
            tally = and_list([f"{count} {_has(count)} {text}" for text, count in counts.items() if count])
            said.append(f"Of {len(rows)} settings of XSA, {tally}.")
        best = min(finished, key=lambda row: row["delta"])
        found = verdicts[rows.index(best)]
        said.append(_about(best, found, axes_in(losses), among=len(finished)))
        if found in ("uncorrected", "inconclusive"):
            said += filter(None, [seeds_for(losses, best["delta"])])
        if len(finished) > 1:
            said.append(
                f"It is the lowest of {len(finished)} mean differences, "
                "and a difference chosen for being extreme tends to overstate the effect."
            )
        if max(row["n"] for row in finished) == 2:
            said.append(
                "With two seeds a t interval reaches 12.7 standard errors to each side; more seeds narrow it."
            )
    diverged, refused, failed, missing = (sum(row[name] for row in rows) for name in LACKING)
    if diverged:
        said.append(
            f"{_pairs(diverged)} diverged, and no mean includes such a pair: the means describe the others."
        )
    if refused:
        said.append(
            f"{_pairs(refused)} {_are(refused)} refused and not compared: the two arms did not begin alike, "
            "with the same initial weights, batches and data."
        )
    if failed:
        said.append(
            f"{_pairs(failed)} failed and {_are(failed)} not in these numbers; `xsa retry` tries again."
        )
    if missing:
        said.append(f"{_pairs(missing)} {_has(missing)} not finished; these numbers may change when they do.")
    return said


def seeds_for(losses: pd.DataFrame, effect: float = EFFECT) -> str:
    """Return a sentence on how many seeds see a true difference of `effect`; empty where no spread is known.

    By the correction that the rows' own p have: see `results.stats.seeds_needed`.
    """
    sd, freedom = spread(losses)
    if not freedom or not effect:
        return ""
    tests = max(1, int(losses["p_holm"].notna().sum()))
    degrees = f"{freedom} degree{'s' if freedom > 1 else ''} of freedom"
    level = (
        f" at {ALPHA:g}/{tests}, as Holm's correction asks of the smallest of {tests} p," if tests > 1 else ""
    )
    return (
        f"At the spread of the paired differences (sd {sd:.2g}, {degrees}), a t-test{level} sees a true difference "
        f"of {abs(effect):.2g} nats/token with a power of {POWER:g} "
        f"from n = {seeds_needed(effect, sd, tests):,} seeds on."
    )


def _about(row: dict[str, Any], found: str, axes: list[str], *, among: int) -> str:
    setting = describe({name: row[name] for name in axes})
    start = f"The lowest mean is that of {setting}: " if among > 1 else f"XSA with {setting}: "
    seeds = "one paired seed" if row["n"] == 1 else f"n = {row['n']} paired seeds"
    start += f"validation loss {signed(row['delta'])} nats/token against SA"
    if found == "no interval":
        why = (
            "One pair shows no spread, so it is no evidence about another seed."
            if row["n"] == 1
            else "The differences are all equal, so their spread cannot be estimated."
        )
        return f"{start}, from {seeds}. {why}"
    p = p_value(row["p_holm"])
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    start += f" (95 % interval {interval(row['low'], row['high'])}, {seeds}, {p}"
    start += " by Holm)" if among > 1 else ")"
    return (
        start
        + {
            "lower": ".",
            "higher": ": worse than SA.",
            "uncorrected": ". After Holm's correction this is no significant difference.",
            "inconclusive": ". The interval contains 0: neither a gain nor a loss can be claimed.",
        }[found]
    )


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _pairs(count: int) -> str:
    return f"{count} pair{'s' if count > 1 else ''}"
