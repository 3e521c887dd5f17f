"""Preparing and reading data, beside nanoGPT's way of doing both, written anew here, on the same text in turns.

    python -m benchmarks.data [--megabytes 60] [--rounds 5]

nanoGPT's way: one process calls `encode_ordinary` for each document, and all ids go into one file; a batch
is cut out of a `np.memmap` that is opened anew for it, a tensor for each of its sequences.

Processes can only be faster where there are cores for them: beside other work, compare the CPU seconds. (And
Linux gives a terminal's processes one share of a busy machine together, however many they are.)
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from schemas.dataset import parse_source
from schemas.trial import Trial
from trainer.data import DATASETS, Batches, Corpus
from trainer.data_folder import Library, Prepared
from trainer.prepare import Asked
from trainer.tokenizer import load_tokenizer

if TYPE_CHECKING:
    import torch  # not at run time: the processes that tokenise import this file too

SHAPES = {"toy": (64, 16), "longer": (1024, 12)}
"""Tokens of a sequence, and sequences of a batch."""


def write_documents(path: Path, size: int) -> int:
    """Write `size` bytes of the embedded texts as documents of 3 kB, FineWeb's mean; return how many."""
    text = "".join(DATASETS["shakespeare"]())
    documents = [text[i : i + 3000] for i in range(0, len(text) - 3000, 3000)]
    n = size // 3000
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):  # no two are equal
            file.write(json.dumps({"text": f"{i} {documents[i % len(documents)]}"}) + "\n")
    return n


def nanogpt_prepare(source: Path, target: Path) -> tuple[float, int]:
    """Return seconds and tokens of preparing as nanoGPT does."""
    encoder = load_tokenizer("gpt2")
    encoding = encoder._encoding  # type: ignore[attr-defined]
    begin = time.perf_counter()
    ids: list[list[int]] = []
    with source.open(encoding="utf-8") as file:
        for line in file:
            tokens = encoding.encode_ordinary(json.loads(line)["text"])
            tokens.append(encoder.eot)
            ids.append(tokens)
    total = sum(map(len, ids))
    stored = np.memmap(target, dtype=np.uint16, mode="w+", shape=(total,))
    place = 0
    for tokens in ids:
        stored[place : place + len(tokens)] = tokens
        place += len(tokens)
    stored.flush()
    return time.perf_counter() - begin, total


def our_prepare(source: Path, folder: Path, workers: int) -> tuple[float, Prepared]:
    """Return seconds and data of `xsa data prepare`: processes, split, hashes and progress included."""
    begin = time.perf_counter()
    made, _ = Library(str(folder)).prepare(
        parse_source(f"jsonl:{source}"), "gpt2", Asked(), workers=workers, tell=lambda told: None
    )
    return time.perf_counter() - begin, made


def compare_preparing(place: Path, megabytes: int, rounds: int) -> Prepared:
    """Print how fast each prepares, and return what was prepared."""
    source = place / "text.jsonl"
    n = write_documents(source, megabytes * 10**6)
    load_tokenizer("gpt2").encode("once, so that loading it is nobody's time")
    speeds: dict[str, list[float]] = {"nanoGPT's way": [], "xsa, 1 process": [], "xsa, 2 processes": []}
    cpu: dict[str, list[float]] = {name: [] for name in speeds}
    for i in range(rounds):
        before = cpu_seconds()
        seconds, total = nanogpt_prepare(source, place / "nanogpt.bin")
        speeds["nanoGPT's way"].append(total / seconds)
        cpu["nanoGPT's way"].append(cpu_seconds() - before)
        for workers, name in ((1, "xsa, 1 process"), (2, "xsa, 2 processes")):
            before = cpu_seconds()
            seconds, made = our_prepare(source, place / f"{i}-{workers}", workers)
            manifest = made.manifest
            assert manifest.tokens("train") + manifest.tokens("val") == total, "the same tokens"
            speeds[name].append(total / seconds)
            cpu[name].append(cpu_seconds() - before)
        print(f"round {i + 1}: " + ", ".join(f"{k} {v[-1] / 1e6:.2f}" for k, v in speeds.items()), flush=True)
    base = statistics.median(speeds["nanoGPT's way"])
    print(f"\n{megabytes} MB, {n:,} documents, {total:,} tokens; medians of {rounds} rounds in turns:\n")
    print("| preparing | million tokens/s | ratio | CPU s |\n|---|---|---|---|")
    for name, values in speeds.items():
        speed, spent = statistics.median(values), statistics.median(cpu[name])
        print(f"| {name} | {speed / 1e6:.2f} | {speed / base:.2f} | {spent:.1f} |")
    return made


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def nanogpt_batch(path: Path, length: int, size: int) -> "torch.Tensor":
    """Return a batch as nanoGPT's `get_batch` makes it, both inputs and targets."""
    import torch

    data = np.memmap(path, dtype=np.uint16, mode="r")
    places = torch.randint(len(data) - length, (size,)).tolist()
    inputs = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in places])
    targets = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in places])
    return torch.stack([inputs, targets])


def compare_reading(made: Prepared, file: Path, rounds: int) -> None:
    """Print what a batch costs each, and beside a step of the toy model."""
    from trainer.process import prepare

    prepare(threads=1)
    print(
        "\n| reading a batch | nanoGPT's way, us | xsa, us | ratio | of a toy step |\n|---|---|---|---|---|"
    )
    for name, (length, size) in SHAPES.items():
        trial = Trial(seq_len=length, tokens_per_step=length * size, eval_tokens=length, bias_tokens=length)
        batches = Batches(trial, Corpus(made.tokens("train"), made.tokens("val"), made.manifest.data_id))
        ways: dict[str, Callable[[int], object]] = {
            "nanogpt": lambda _, length=length, size=size: nanogpt_batch(file, length, size),  # type: ignore[misc]
            "xsa": batches.train,
        }
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for step in range(200 * rounds):
            for way, read in ways.items():
                begin = time.perf_counter()
                read(step)
                spent[way].append(time.perf_counter() - begin)
        theirs, ours = (statistics.median(spent[way]) * 1e6 for way in ways)
        step_us = toy_step(trial, batches) * 1e6
        shape = f"{name}: {size} x {length}"
        print(
            f"| {shape} | {theirs:.0f} | {ours:.0f} | {theirs / ours:.1f} | {ours / step_us:.2%} |",
            flush=True,
        )


def toy_step(trial: Trial, batches: Batches) -> float:
    """Return the median seconds of a forward and backward pass of the toy model."""
    import torch

    from trainer.model import build

    model, _ = build(trial.xsa, torch.device("cpu"))
    seconds = []
    for step in range(5):
        windows = torch.from_numpy(batches.train(step))
        begin = time.perf_counter()
        model.loss(windows).backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def main() -> None:
    """Measure in turns, and print Markdown tables of medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=60, help="of text")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores; load {load} over the last 1, 5 and 15 minutes\n")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        made = compare_preparing(place, options.megabytes, options.rounds)
        compare_reading(made, place / "nanogpt.bin", options.rounds)


if __name__ == "__main__":
    main()
