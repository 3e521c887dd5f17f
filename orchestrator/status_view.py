"""What `xsa status` shows on a terminal: lines and tables made of its documents."""

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.failures import Failure
from orchestrator.layout import STATUS_COLORS, Row, ago, columns, facts, machine, memory, utc
from orchestrator.progress import duration

SHOWN = 10
"""How many arms of a kind are listed, and how many kinds of failures; `--failed` and `--json` list all."""
_LEVELS = {"error": "red", "warning": "yellow", "info": ""}
_GOES_ON = "the next `xsa run` goes on with it"


def sweeps_view(rows: Sequence[Row]) -> list[RenderableType]:
    """Return a table with a line for each sweep."""
    if not rows:
        return [Text("No sweep yet: xsa run SWEEP.yaml")]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "sweep" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(value)) if value else "·" for value in row.values()))
    return [table]


def sweep_view(found: Row) -> list[RenderableType]:
    """Return what runs in a sweep, what failed and why, and what else is worth a look."""
    arms = {status: [row for row in found["arms"] if row["status"] == status] for status in STATUS_COLORS}
    return [
        _counts(found),
        *_evals(found["evals"]),
        *_block(Text("runs"), [(_run_name(row), _run_state(row)) for row in found["runs"]]),
        *_block(Text("running", "cyan"), [_line(row, _training(row)) for row in arms["running"]]),
        *_failed(found["sweep"], arms["failed"]),
        *_block(
            Text("interrupted", "yellow").append(": the next `xsa run` goes on with them", "default"),
            [_line(row, row["error"] or "") for row in arms["interrupted"]],
        ),
        *_block(
            Text("diverged", "yellow").append(
                ": their loss is no longer a number, which is a result", "default"
            ),
            [_line(row, "") for row in arms["diverged"]],
        ),
        *_block(Text("newest events"), [(utc(row["noted_at"]), _event(row)) for row in found["events"]]),
    ]


def failures_view(found: Row) -> list[RenderableType]:
    """Return a block for each arm that failed or diverged: why, where, on what memory, and the traceback."""
    if not found["arms"]:
        return [Text(f"{found['sweep']}: nothing failed, and nothing diverged.")]
    parts: list[RenderableType] = []
    for row in found["arms"]:
        head = Text(f"{row['arm']}  {row['label']}  ").append(row["status"], STATUS_COLORS[row["status"]])
        known = {
            "cause": row["cause"],
            "attempt": f"{row['attempts']}, ended {utc(row['ended_at'])}" if row["ended_at"] else None,
            "where": machine(row),
            "memory": memory(row),
            "error": (row["error"] or "").strip().rpartition("\n")[2],
        }
        parts += [head.append(f" at step {row['step']:,}/{row['steps']:,}"), facts(known)]
        if row["traceback"]:
            parts.append(Text(row["traceback"].rstrip(), "dim"))
        parts.append(Text())
    return parts[:-1]


def _counts(found: Row) -> Text:
    counts = {status: found[status] for status in (*STATUS_COLORS, "pending") if found[status]}
    line = Text(f"{found['sweep']}: {sum(counts.values()):,} arms of {found['trials']:,} pairs")
    for i, status in enumerate(counts):
        line.append(", " if i else ": ").append(f"{counts[status]:,} {status}", STATUS_COLORS.get(status, ""))
    return line


def _evals(rows: Sequence[Row]) -> list[RenderableType]:
    """Return how many downstream evaluations there are, and why some have no scores."""
    failed = [row for row in rows if row["error"]]
    done, bad = (sum(row["arms"] for row in those) for those in (rows, failed))
    if not rows:
        return []
    line = Text(f"evaluations: {done - bad:,} done").append(f", {bad:,} failed" if bad else "", "red")
    return [
        line,
        *(Text(f"  {row['task']} on {row['arms']:,} arms: {row['error']}") for row in failed[:SHOWN]),
    ]


def _failed(sweep: str, rows: Sequence[Row]) -> list[RenderableType]:
    """Return the failures, by cause and by what was said: many arms often fail of one."""
    if not rows:
        return []
    causes = ", ".join(
        f"{number:,} {cause}" for cause, number in Counter(r["cause"] for r in rows).most_common()
    )
    parts: list[RenderableType] = [
        Text(),
        Text(f"{len(rows):,} failed", "red").append(f": {causes}", "default"),
        Text(f"  again: xsa retry {sweep}   with tracebacks: xsa status {sweep} --failed"),
    ]
    said = Counter(map(_signature, rows))
    for signature, _ in said.most_common(SHOWN):
        alike = [row for row in rows if _signature(row) == signature]
        title = Text(f"  {alike[0]['cause']}: {alike[0]['error']}")
        parts += _block(title, [_line(row, _failure(row)) for row in alike])[1:]
    return parts + _more(len(said))


def _signature(row: Row) -> str:
    return Failure(row["cause"], row["error"] or "").signature


def _block(title: Text, lines: Sequence[Sequence[str | Text]]) -> list[RenderableType]:
    """Return lines below their title, or nothing where there are none."""
    return [Text(), title, columns(lines[:SHOWN]), *_more(len(lines))] if lines else []


def _more(number: int) -> list[RenderableType]:
    return [Text(f"  and {number - SHOWN:,} more, which --json lists", "dim")] if number > SHOWN else []


def _line(row: Row, note: str) -> tuple[str, ...]:
    share = f", {100 * row['step'] / row['steps']:.0f} %" if row["status"] == "running" else ""
    return row["arm"], row["label"], f"step {row['step']:,}/{row['steps']:,}{share}", note


def _training(row: Row) -> str:
    if row["run"] == "dead":
        return f"its run has ended; {_GOES_ON}"
    since = duration(row["seen_s_ago"])
    if row["run"] == "silent":
        return f"silent for {since}; {_GOES_ON}"
    return f"seen {since} ago" + (f" on {row['hostname']}" if row["hostname"] else "")


def _failure(row: Row) -> str:
    on = f" on {row['hostname']}" if row["hostname"] else ""
    return f"attempt {row['attempts']}{on}, {ago(row['ended_at'])}"


def _run_name(row: Row) -> str:
    return f"{row['hostname']}, process {row['pid']}"


def _run_state(row: Row) -> str:
    if row["run"] == "dead":
        return "ended without a word"
    seen = f"seen {duration(row['seen_s_ago'])} ago, began {ago(row['started_at'])}"
    return f"asked to stop {ago(row['stop_at'])}, {seen}" if row["stop_at"] else seen


def _event(row: Row) -> Text:
    about = f" ({row['arm']})" if row["arm"] else ""
    return Text(f"{row['kind']}: {row['message']}{about}", _LEVELS[row["level"]])
