import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from schemas.trial import Arm
from trainer import lm_score
from trainer.lm_score import Ids, generate, score
from trainer.model import GPT, Past, build

AXES: list[dict[str, Any]] = [
    {"xsa_lambda": 0},
    {"xsa_lambda": 1},
    {"xsa_lambda": 0.5, "xsa_layers": "1", "qk_norm": True},
    {"n_kv_head": 2, "xsa_lambda": 2},
    *({"n_sinks": 3, "sink_kind": kind, "n_kv_head": 2} for kind in ("token", "kv", "logit", "zero")),
]
Make = Callable[..., Arm]


def model_of(arm: Arm) -> GPT:
    """Far enough from its initialisation that attention and sinks matter."""
    model, _ = build(arm, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


def pairs_of(seed: int, contexts: int = 7) -> list[tuple[Ids, Ids]]:
    """Contexts of 1 to 8 bytes, each with one to four continuations of 1 to 8."""
    draw = random.Random(seed)

    def ids() -> Ids:
        return tuple(draw.choices(range(256), k=draw.randint(1, 8)))

    return [
        (context, ids()) for context in (ids() for _ in range(contexts)) for _ in range(draw.randint(1, 4))
    ]


@torch.no_grad()
def plain(model: GPT, context: Ids, continuation: Ids) -> tuple[float, bool]:
    """The same from one full forward pass."""
    logits = model.logits(torch.tensor([context + continuation])[:, :-1])[0, len(context) - 1 :]
    targets = torch.tensor(continuation)
    own = logits.log_softmax(-1).gather(1, targets[:, None])
    return own.sum().item(), bool((logits.argmax(-1) == targets).all())


@pytest.mark.parametrize("changes", AXES, ids=str)
def test_scores_are_those_of_a_full_forward_pass_whatever_the_batch(
    tiny: Make, changes: dict[str, Any]
) -> None:
    model, pairs = model_of(tiny(**changes)), pairs_of(0)
    wanted = [plain(model, *pair) for pair in pairs]
    for batch_size in (1, 3, 100):
        found = score(model, pairs, batch_size=batch_size)
        assert [s.logprob for s in found] == pytest.approx([w[0] for w in wanted], abs=2e-5)
        assert [s.greedy for s in found] == [w[1] for w in wanted]


def test_a_greedy_continuation_is_told(tiny: Make) -> None:
    model = model_of(tiny())
    written = tuple(generate(model, [(1, 2, 3)], most=4, n_vocab=257, finished=lambda i, ids: False)[0])
    other = (*written[:3], written[3] ^ 1)
    right, wrong, one = score(
        model, [((1, 2, 3), written), ((1, 2, 3), other), ((1, 2, 3), written[:1])], batch_size=2
    )
    assert (right.greedy, wrong.greedy, one.greedy) == (True, False, True)


@pytest.mark.parametrize("changes", AXES, ids=str)
def test_generation_with_a_cache_is_that_of_full_forward_passes(tiny: Make, changes: dict[str, Any]) -> None:
    model = model_of(tiny(**changes))
    contexts = list({context for context, _ in pairs_of(1, contexts=4)})
    written = generate(model, contexts, most=8, n_vocab=257, finished=lambda i, ids: False)
    for context, ids in zip(contexts, written, strict=True):
        with torch.no_grad():
            logits = model.logits(torch.tensor([[*context, *ids[:-1]]]))[0, len(context) - 1 :, :257]
        assert ids == logits.argmax(-1).tolist()


def test_generation_ends_where_each_is_finished_or_at_the_most(tiny: Make) -> None:
    model = model_of(tiny())
    written = generate(
        model, [(1,), (2, 3), (4,)], most=5, n_vocab=257, finished=lambda i, ids: len(ids) == i + 1
    )
    assert list(map(len, written)) == [1, 2, 3]
    assert list(map(len, generate(model, [(1,)], most=5, n_vocab=257, finished=lambda i, ids: False))) == [5]


def test_ids_that_pad_the_vocabulary_are_never_written(tiny: Make) -> None:
    model = model_of(tiny())
    with torch.no_grad():
        model.wte.weight[257:] = model.wte.weight[:257].mean(0) * 0 + 50
        model.ln_f.weight.abs_()
    (ids,) = generate(model, [(1, 2)], most=6, n_vocab=257, finished=lambda i, ids: False)
    assert max(ids) < 257


@pytest.mark.parametrize("changes", AXES, ids=str)
def test_logits_after_a_past_are_those_of_the_whole(tiny: Make, changes: dict[str, Any]) -> None:
    """Two rows whose pasts have 5 and 3 tokens, and go on with 4 and 4."""
    model = model_of(tiny(**changes))
    whole = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    kv: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        model.forward(whole[:, :5], lambda seen: kv.append((seen.k, seen.v)))
        lengths = torch.tensor([[5], [3]])
        tokens = torch.stack((whole[0, 5:9], whole[1, 3:7]))
        n = model.n_input_sinks
        past_seen = torch.arange(n + 5) < n + lengths
        visible = torch.cat(
            (past_seen[:, None].expand(-1, 4, -1), torch.ones(2, 4, 4, dtype=torch.bool).tril()), dim=2
        )
        found = model.forward(tokens, None, Past(kv, lengths + torch.arange(4), visible[:, None]))
        full = model.forward(whole)
    assert torch.allclose(found[0], full[0, 5:9], atol=1e-5)
    assert torch.allclose(found[1], full[1, 3:7], atol=1e-5)


def test_each_context_is_read_once_and_logits_are_made_of_what_is_scored_alone(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(tiny())
    read: list[int] = []
    made: list[int] = []
    forward, logits = GPT.forward, lm_score._logits

    def counted_forward(self: GPT, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        read.append(tokens.numel())
        return forward(self, tokens, *rest)

    def counted_logits(model: GPT, x: torch.Tensor) -> torch.Tensor:
        made.append(len(x))
        return logits(model, x)

    monkeypatch.setattr(GPT, "forward", counted_forward)
    monkeypatch.setattr(lm_score, "_logits", counted_logits)
    context = tuple(range(8))
    score(model, [(context, (1, 2, 3)), (context, (4, 5)), (context, (6,)), (context, (7,))], batch_size=8)
    assert read == [8 + 2, 1], "the context with the longest continuation, then what the second adds"
    assert made == [3 + 1], "one row after the context for all four, two more of the first, one of the second"


def test_a_tick_that_raises_ends_the_scoring_before_the_next_batch(tiny: Make) -> None:
    ticks = iter([None, None])
    with pytest.raises(StopIteration):
        score(model_of(tiny()), pairs_of(2), batch_size=1, tick=lambda: next(ticks))


def test_bfloat16_scores_in_the_models_own_precision(tiny: Make) -> None:
    model, pairs = model_of(tiny(dtype="bfloat16")), pairs_of(3)
    for found, pair in zip(score(model, pairs, batch_size=4), pairs, strict=True):
        assert found.logprob == pytest.approx(plain(model, *pair)[0], rel=0.02)
