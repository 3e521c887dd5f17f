import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from schemas.errors import UserError
from schemas.trial import Arm
from trainer.lm import ArmLM
from trainer.model import GPT, build

Make = Callable[..., Arm]


def asked(*arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(args=arguments)


@pytest.fixture
def model(tiny: Make) -> GPT:
    model, _ = build(tiny(), torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model


@torch.no_grad()
def logprob(model: GPT, ids: list[int], scored: int) -> float:
    """Of the last `scored` of these ids, from one full forward pass."""
    logits = model.logits(torch.tensor([ids[:-1]])).log_softmax(-1)[0, -scored:]
    return logits.gather(1, torch.tensor(ids[-scored:])[:, None]).sum().item()


def test_an_empty_context_is_an_end_of_text(model: GPT) -> None:
    ((found, _),) = ArmLM(model, batch_size=2).loglikelihood([asked("", "abc")])
    assert found == pytest.approx(logprob(model, [256, *b"abc"], 3), abs=1e-5)


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation(model: GPT) -> None:
    (there,), (here,) = (
        ArmLM(model, batch_size=2).loglikelihood([a]) for a in (asked("ab ", "c"), asked("ab", " c"))
    )
    assert there == here


def test_a_context_of_spaces_alone_is_an_end_of_text_too(model: GPT) -> None:
    spaces, none = ArmLM(model, batch_size=2).loglikelihood([asked("  ", "ab"), asked("", "  ab")])
    assert spaces == (pytest.approx(none[0], abs=1e-5), none[1])


def test_what_is_too_long_loses_its_beginning(model: GPT) -> None:
    """seq_len is 16: of 14 and 5 bytes, 16 are read, and the first two are not."""
    ((found, _),) = ArmLM(model, batch_size=2).loglikelihood([asked("abcdefghijklmn", "vwxyz")])
    assert found == pytest.approx(logprob(model, [*b"cdefghijklmn", *b"vwxyz"], 5), abs=1e-5)


def test_a_continuation_that_alone_is_too_long_is_scored_in_windows(model: GPT) -> None:
    text = bytes(range(65, 65 + 20))
    ((found, greedy),) = ArmLM(model, batch_size=2).loglikelihood([asked("!?", text.decode())])
    first = logprob(model, [*b"?", *text[:16]], 16)
    rest = logprob(model, [*text[3:]], 4)  # the last window is as long as can be, and scores what is left
    assert found == pytest.approx(first + rest, abs=1e-4)
    assert not greedy


@pytest.mark.parametrize("length", [0, 1, 16, 17, 40])
def test_a_rolling_text_has_every_byte_predicted_once(model: GPT, length: int) -> None:
    text = bytes(33 + i for i in range(length))
    (found,) = ArmLM(model, batch_size=3).loglikelihood_rolling([asked(text.decode())])
    wanted, ids = 0.0, [256, *text]
    for start in range(0, length, 16):
        n = min(16, length - start)
        end = start + n + 1
        wanted += logprob(model, ids[max(0, end - 17) : end], n)
    assert found == pytest.approx(wanted, abs=1e-4)


def test_generation_stops_at_a_text_which_is_cut_off(model: GPT) -> None:
    lm = ArmLM(model, batch_size=2)
    settings = {"max_gen_toks": 8, "do_sample": False}
    contexts = ["ab", "xyz", "a longer one than fits"]
    whole = lm.generate_until([asked(context, {"until": [], **settings}) for context in contexts])
    assert whole[2] == lm.generate_until([asked(contexts[2][-8:], {"until": [], **settings})])[0]
    for context, text in zip(contexts, whole, strict=True):
        stop = text[3:5]
        (cut,) = lm.generate_until([asked(context, {"until": [stop], **settings})])
        assert cut == text.split(stop)[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_gen_toks": 4, "do_sample": True, "temperature": 0.7}, "sampled"),
        ({"until": []}, "256 tokens, and the arm reads no more than 16"),
    ],
)
def test_what_an_arm_cannot_write_is_refused(model: GPT, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ArmLM(model, batch_size=1).generate_until([asked("ab", settings)])


def test_log_probabilities_of_all_bytes_sum_to_one(model: GPT) -> None:
    """With those of end-of-text and of what pads the vocabulary, which no text can ask for."""
    requests = [asked("ab", chr(i)) for i in range(128)]
    mass = sum(math.exp(value) for value, _ in ArmLM(model, batch_size=64).loglikelihood(requests))
    with torch.no_grad():
        rest = model.logits(torch.tensor([[*b"ab"]])).softmax(-1)[0, -1, 128:].sum().item()
    assert mass + rest == pytest.approx(1, abs=1e-5)
