"""A sweep's data: where they are kept, which of them are there, and preparing those that are files here."""

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

from orchestrator.progress import duration, quantity
from results.location import address_of, url_of
from schemas.dataset import EMBEDDED, Source, parse_source
from schemas.errors import UserError
from schemas.sweep import Sweep
from schemas.trial import Trial
from trainer.data import check_data, prepare_command
from trainer.data_folder import Library, Prepared
from trainer.prepare import Asked, Told
from trainer.sources import PAPER_SHARE, are_gone, open_source

QUIET_S = 10.0
"""Seconds between plain lines where no terminal can rewrite one."""


def data_folder(given: str | None, db: str | None, storage: Path | None = None) -> str:
    """Return the data folder, as any process on this machine can name it.

    That is `given`, else `data/` beside the storage, which is beside the store unless one is named.
    """
    if given and "://" in given:
        return given
    url = url_of(address_of(db))
    named = storage or os.environ.get("XSA_STORAGE")
    if named:
        beside = Path(named).parent
    else:
        beside = Path(url.database).parent if url.drivername == "sqlite" and url.database else Path()
    return str(Path(given or beside / "data").expanduser().absolute())


def cpus() -> int:
    """Return the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Missing:
    """Data of a sweep that are not prepared."""

    source: Source
    dataset: str
    tokenizer: str
    trials: list[Trial]

    def advice(self, folder: str) -> str:
        """Return what to do about it, in a line."""
        if self.source.is_local:
            return f"{self.dataset} ({self.tokenizer}) is not prepared yet; `xsa run` does it first, into {folder}"
        return (
            f"{self.dataset} ({self.tokenizer}) is not prepared in {folder}, and nothing is downloaded unasked: "
            f"{prepare_command(self.dataset, self.tokenizer)} --data {folder} --tokens {self._enough():.0f}"
        )

    def _enough(self) -> float:
        """Return how many tokens no trial needs more of, in two digits: one epoch, and what is held out of it."""
        needed = max(max(trial.tokens * 1.01, 1.5 * trial.eval_tokens / PAPER_SHARE) for trial in self.trials)
        unit = 10.0 ** (math.floor(math.log10(needed)) - 1)
        return math.ceil(needed / unit) * unit


def on_data(sweep: Sweep, folder: str) -> tuple[Sweep, list[Missing]]:
    """Return the sweep with the identities of its data, and those of its data that are not prepared.

    Raises `UserError` where data that are there are too short for a trial.
    """
    needs: dict[tuple[str, str], list[Trial]] = {}
    for trial in sweep.trials():
        if trial.dataset not in EMBEDDED:
            needs.setdefault((trial.dataset, trial.tokenizer), []).append(trial)
    ids: dict[tuple[str, str], str] = {}
    missing = []
    library = Library(folder) if needs else None
    for (dataset, tokenizer), trials in needs.items():
        assert library is not None
        source = parse_source(dataset)
        if prepared := library.of(source, tokenizer):
            ids[dataset, tokenizer] = prepared.manifest.data_id
        else:
            if source.is_local:
                open_source(source, None)  # raises where there is no such file
            missing.append(Missing(source, dataset, tokenizer, trials))
    if ids:
        runtime = sweep.runtime.model_copy(update={"data": folder})
        sweep = sweep.model_copy(update={"runtime": runtime}).on_data(ids)
    check_data([trial for trial in sweep.trials() if trial.data_id or trial.dataset in EMBEDDED], folder)
    return sweep, missing


def with_data(sweep: Sweep, folder: str, console: Console) -> Sweep:
    """Return the sweep with the identities of its data; those that are files here are prepared if need be.

    Raises `UserError` where data of the Hub are not prepared: they are not downloaded by surprise.
    """
    sweep, missing = on_data(sweep, folder)
    print_gone(console, dict.fromkeys(trial.dataset for trial in sweep.trials()))
    for one in missing:
        if not one.source.is_local:
            raise UserError(f"{one.advice(folder)}.")
    for one in missing:
        console.print(
            f"Preparing {escape(one.dataset)} ({one.tokenizer}) into {escape(folder)} ...", soft_wrap=True
        )
        prepared, _ = prepare(Library(folder), one.source, one.tokenizer, Asked(), cpus(), console)
        console.print(f"  {summary(prepared)}", soft_wrap=True, markup=False)
    return on_data(sweep, folder)[0] if missing else sweep


def prepare(
    library: Library, source: Source, tokenizer: str, asked: Asked, workers: int, console: Console
) -> tuple[Prepared, bool]:
    """Prepare a source and show how it goes. Returns and raises what `Library.prepare` does."""
    with _shown(console) as tell:
        return library.prepare(source, tokenizer, asked, workers=workers, tell=tell)


def print_gone(console: Console, datasets: Iterable[str]) -> None:
    """Say of which of these the files are gone, so that what was prepared of them is used."""
    for dataset in datasets:
        if are_gone(parse_source(dataset)):
            console.print(
                f"{dataset} is gone; what was prepared of it is used.", markup=False, soft_wrap=True
            )


def summary(prepared: Prepared) -> str:
    """Return what a data set holds, in a line."""
    told = prepared.manifest
    skipped = f", {told.empty_documents:,} empty ones left out" if told.empty_documents else ""
    return (
        f"{prepared.name}: {told.tokens('train'):,} tokens to train on and {told.tokens('val'):,} held out "
        f"({told.train_documents:,} and {told.val_documents:,} documents{skipped}), id {told.data_id[:12]}"
    )


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Told], None]]:
    """Show tokens, their speed and the time left: in a bar on a terminal, now and then in a line elsewhere."""
    began = said = time.monotonic()
    first: Told | None = None
    columns = (TextColumn("{task.description}"), BarColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading ...", total=None)

        def tell(told: Told) -> None:
            nonlocal first, began, said
            now = time.monotonic()
            if first is None:
                first, began = told, now  # what an earlier call did says nothing of this one's speed
            line = _line(told, first, now - began)
            bar.update(
                task, description=line, completed=told.share or 0, total=None if told.share is None else 1
            )
            if not console.is_terminal and now - said >= QUIET_S:
                console.print(f"  {line}", markup=False, soft_wrap=True)
                said = now

        yield tell


def _line(told: Told, first: Told, seconds: float) -> str:
    parts = [f"{quantity(told.tokens)}tokens of {told.documents:,} documents"]
    if seconds > 0:
        parts.append(f"{quantity((told.tokens - first.tokens) / seconds)}tokens/s")
    if told.share and first.share is not None and told.share > first.share:
        left = seconds * (1 - told.share) / (told.share - first.share)
        parts += [f"{told.share:.0%}", f"{duration(left)} left"]
    return ", ".join(parts)
