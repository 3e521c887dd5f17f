"""Our adapter against lm-eval's own for Hugging Face models, which drives the same model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from schemas.evals import PAPER8
from schemas.trial import Trial
from trainer.evals_tasks import load_task
from trainer.lm import ArmLM
from trainer.model import GPT, build

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
TASKS = Path(__file__).parents[1] / "tasks"


@pytest.fixture(scope="module")
def model() -> GPT:
    trial = Trial(
        n_layer=2, d_model=32, n_head=4, d_head=8, n_kv_head=2, seq_len=40, tokens_per_step=40, eval_tokens=40,
        bias_tokens=40, qk_norm=True, n_sinks=2, sink_kind="kv",
    )  # fmt: skip
    model, _ = build(trial.xsa, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return model


def samples(lm: Any, name: str) -> list[dict[str, Any]]:
    from lm_eval.evaluator import evaluate

    task = load_task(name, n_shot=0, data=TASKS)
    told = evaluate(lm, {"tasks": {name: task}}, bootstrap_iters=0)
    found: list[dict[str, Any]] = told["samples"][name]
    return found


@pytest.mark.parametrize("name", PAPER8)
def test_log_probabilities_and_scores_are_those_of_lm_evals_own_adapter(model: GPT, name: str) -> None:
    from tests.trainer.peer import peer

    ours, theirs = samples(ArmLM(model, batch_size=4), name), samples(peer(model, 4), name)
    assert len(ours) == len(theirs) > 2
    for a, b in zip(ours, theirs, strict=True):
        assert a["arguments"] == b["arguments"]
        for (mine,), (other,) in zip(a["resps"], b["resps"], strict=True):
            assert mine[0] == pytest.approx(other[0], abs=1e-4)
            assert mine[1] == other[1]
        for metric in set(a["metrics"]) - {"perplexity"}:
            assert a[metric] == b[metric]


def test_rolling_log_probabilities_are_those_of_lm_evals_own_adapter(model: GPT) -> None:
    from types import SimpleNamespace

    from tests.trainer.peer import peer

    text = "The harbour never froze, and ships called there all the year. " * 8
    requests = [SimpleNamespace(args=(text[:n],)) for n in (1, 30, 200, len(text))]
    ours = ArmLM(model, batch_size=3).loglikelihood_rolling(requests)
    theirs = peer(model, 3).loglikelihood_rolling(requests)
    assert ours == pytest.approx(theirs, abs=1e-3, rel=1e-6)
