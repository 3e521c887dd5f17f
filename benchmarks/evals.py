"""What our lm-eval adapter is worth: items a second against lm-eval's own for Hugging Face models.

Both drive the same model on the same items, in one thread of the CPU, in turns; medians over rounds.

    python -m benchmarks.evals --task-data DIR [--limit 30] [--rounds 3] [--model-size toy] [--seq-len 256]
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lm_eval.evaluator import evaluate

from schemas.evals import PAPER8
from schemas.trial import Trial
from tests.trainer.peer import peer
from trainer.evals_tasks import load_task
from trainer.lm import ArmLM
from trainer.model import GPT, build
from trainer.process import prepare

WANTED = 1.3
"""Times as fast as the peer that ours is to be, over all tasks."""


def seconds(lm: Any, name: str, limit: int, data: Path) -> tuple[float, list[Any]]:
    """Return the processor seconds that a task takes once its data are loaded, and what the model answered."""
    task = load_task(name, n_shot=0, data=data)
    task.build_all_requests(limit=limit, rank=0, world_size=1)
    begin = time.process_time()
    told = evaluate(lm, {"tasks": {name: task}}, limit=limit, bootstrap_iters=0)
    spent = time.process_time() - begin
    return spent, [sample["resps"] for sample in told["samples"][name]]


def model_of(size: str, seq_len: int) -> GPT:
    trial = Trial(
        model_size=size, seq_len=seq_len, tokens_per_step=seq_len, eval_tokens=seq_len, bias_tokens=seq_len
    )
    return build(trial.xsa, torch.device("cpu"))[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task-data", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model-size", default="toy")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    asked = parser.parse_args()
    prepare(1)
    model = model_of(asked.model_size, asked.seq_len)
    adapters = {"ours": ArmLM(model, batch_size=asked.batch_size), "peer": peer(model, asked.batch_size)}
    print(f"{'task':16}{'ours, items/s':>15}{'peer, items/s':>15}{'ratio':>8}   greatest difference, nats")
    totals = dict.fromkeys(adapters, 0.0)
    for name in PAPER8:
        spent: dict[str, list[float]] = {who: [] for who in adapters}
        answers = {}
        for _ in range(asked.rounds):
            for who, lm in adapters.items():
                took, answers[who] = seconds(lm, name, asked.limit, asked.task_data)
                spent[who].append(took)
        middle = {who: statistics.median(times) for who, times in spent.items()}
        ours, theirs = middle["ours"], middle["peer"]
        n = len(answers["ours"])
        print(
            f"{name:16}{n / ours:15.1f}{n / theirs:15.1f}{theirs / ours:8.2f}   {_difference(answers):.1e}",
            flush=True,
        )
        for who in adapters:
            totals[who] += middle[who]
    ratio = totals["peer"] / totals["ours"]
    print(f"{'all':16}{'':30}{ratio:8.2f}   wanted: {WANTED}")
    sys.exit(ratio < WANTED)


def _difference(answers: dict[str, list[Any]]) -> float:
    """Return the greatest difference of two log-probabilities of the same continuation."""
    pairs = zip(answers["ours"], answers["peer"], strict=True)
    return max(abs(a[0][0] - b[0][0]) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True))


if __name__ == "__main__":
    main()
