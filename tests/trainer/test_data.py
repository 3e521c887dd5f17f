"""Tokens, the split, and batches as a pure function of (seed, data, step)."""

import hashlib
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.errors import UserError
from schemas.trial import Arm, Trial
from trainer.data import (
    DATASETS,
    Batches,
    NotEnoughData,
    check_data,
    load_corpus,
    permute,
    split_documents,
)
from trainer.tokenizer import gpt2_ranks, load_tokenizer, padded_vocab

TEXTS = [
    "",
    "Hello, world!",
    "  it's  1600;\n\n\tκαλημέρα 世界 🙂",
    "<|endoftext|> is text",
    "\x00\xff\ufffd",
]


@pytest.mark.parametrize("name", ["gpt2", "bytes"])
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_tokenisation(name: str, text: str) -> None:
    tokenizer = load_tokenizer(name)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.eot not in ids
    assert tokenizer.decode(np.array([tokenizer.eot], dtype=np.uint16)) == "<|endoftext|>"


@settings(deadline=None)
@given(text=st.text())
def test_any_text_survives_tokenisation(text: str) -> None:
    for name in ("gpt2", "bytes"):
        assert load_tokenizer(name).decode(load_tokenizer(name).encode(text)) == text


KNOWN_IDS = {
    0: b"!",
    93: b"~",
    94: b"\xa1",
    187: b"\xff",
    188: b"\x00",
    220: b" ",
    255: b"\xad",
    256: b" t",
    1_000: b"ale",
    10_000: b" pocket",
    30_000: b" Mineral",
    49_999: b"Mach",
    50_255: b" gazed",
}
# sha256 of the 50,256 byte strings in the order of OpenAI's encoder.json, in hex, a line each
OFFICIAL_ORDER = "aeaa78b7b290b0589fd47a01d21209e16ce6247e8d33425325eb472f66916d1c"


def test_gpt2_ids_are_the_official_ones() -> None:
    ranks = gpt2_ranks()
    strings = sorted(ranks, key=ranks.__getitem__)
    assert [ranks[text] for text in strings] == list(range(50_256))
    assert {i: strings[i] for i in KNOWN_IDS} == KNOWN_IDS
    assert hashlib.sha256("\n".join(text.hex() for text in strings).encode()).hexdigest() == OFFICIAL_ORDER


def test_gpt2_splits_as_gpt2_does() -> None:
    tokenizer = load_tokenizer("gpt2")
    assert tokenizer.encode("Hello, world!").tolist() == [15496, 11, 995, 0]
    assert tokenizer.encode("hello   world\n\nit's 1600").tolist() == [
        31373, 220, 220, 995, 198, 198, 270, 338, 26143,
    ]  # fmt: skip


def test_vocabularies_are_padded_to_multiples_of_64() -> None:
    assert padded_vocab("gpt2") == 50_304
    assert padded_vocab("bytes") == 320


def test_documents_never_leak() -> None:
    documents = DATASETS["shakespeare"]()
    train, held_out = split_documents(documents)
    assert len(documents) == 46
    assert Counter(documents) == Counter(train) + Counter(held_out)
    assert not set(train) & set(held_out)
    assert 0.05 < sum(map(len, held_out)) / sum(map(len, documents)) < 0.15
    assert len(held_out) >= 4, "held-out loss must not be that of one odd text"
    assert split_documents(documents[::-1])[1] == held_out, "the choice depends on the texts alone"
    trained_on = "".join(train)
    for text in held_out:
        middle = len(text) // 2
        assert text[middle : middle + 500] not in trained_on


def test_streams_end_each_document_and_are_those_of_the_text() -> None:
    corpus = load_corpus("shakespeare", "bytes")
    train, held_out = split_documents(DATASETS["shakespeare"]())
    assert (corpus.train == 256).sum() == len(train) and corpus.train[-1] == 256
    assert load_tokenizer("bytes").decode(corpus.val) == "".join(f"{text}<|endoftext|>" for text in held_out)
    assert load_corpus("shakespeare", "bytes") is corpus, "tokenised once in a process"
    assert corpus.sha256 != load_corpus("shakespeare", "gpt2").sha256


@settings(deadline=None)
@given(n=st.integers(1, 3000), key=st.text(max_size=5))
@example(n=1, key="")
@example(n=4, key="")
@example(n=1025, key="")
def test_the_permutation_is_a_bijection(n: int, key: str) -> None:
    image = permute(np.arange(n, dtype=np.uint64), n, key=key)
    assert sorted(image.tolist()) == list(range(n))


def test_the_permutation_looks_random() -> None:
    """Against 4,000 uniform draws: few fixed points, no drift, and keys that do not agree."""
    index = np.arange(4000, dtype=np.uint64)
    one, other = (permute(index, 4000, key=key) for key in ("one", "other"))
    for image in (one, other):
        assert (image == np.arange(4000)).sum() < 8
        assert abs(np.corrcoef(image, np.arange(4000))[0, 1]) < 0.06
        assert abs(np.corrcoef(image[1:], image[:-1])[0, 1]) < 0.06
    assert (one == other).sum() < 8


def test_an_epoch_visits_each_window_once_and_the_next_in_another_order(tiny: Callable[..., Arm]) -> None:
    arm = tiny(seq_len=8192, tokens_per_step=8192 * 5, eval_tokens=8192, bias_tokens=8192)
    batches = Batches.of(arm)
    n = batches.n_windows
    assert n % 5, "epochs must not end with a batch for this test to mean anything"
    steps = [batches.train(step) for step in range(-(-2 * n // 5))]
    order = [row[:64].tobytes() for batch in steps for row in batch]
    assert len(set(order[:n])) == len(set(order[n : 2 * n])) == n
    assert order[:n] != order[n : 2 * n]
    assert set(order[:n]) == set(order[n : 2 * n])


def test_batches_depend_on_seed_and_step_alone(tiny: Callable[..., Arm]) -> None:
    sa, xsa, other = (Batches.of(arm) for arm in (tiny(xsa_lambda=0, lr=1.0), tiny(n_sinks=3), tiny(seed=1)))
    assert np.array_equal(sa.train(1000), xsa.train(1000))
    assert sa.sha256() == xsa.sha256() != other.sha256()
    assert not np.array_equal(sa.train(1000), other.train(1000))
    assert not np.array_equal(sa.train(1000), sa.train(1001))
    assert np.array_equal(sa.evaluation(), other.evaluation())
    assert np.array_equal(sa.bias(), other.bias())


def test_windows_hold_targets_one_further(tiny: Callable[..., Arm]) -> None:
    batches = Batches.of(tiny())
    assert batches.train(0).shape == (4, 17) and batches.train(0).dtype == np.int64
    evaluation = batches.evaluation()
    assert evaluation.shape == (8, 17)
    assert np.array_equal(evaluation[:, :-1].flatten(), batches.corpus.val[:128])
    assert np.array_equal(evaluation[:, 1:].flatten(), batches.corpus.val[1:129])
    stream = batches.corpus.train.tobytes()
    assert all(row.astype(np.uint16).tobytes() in stream for row in batches.bias())


def test_held_out_tokens_do_not_depend_on_seq_len(tiny: Callable[..., Arm]) -> None:
    short, long = (Batches.of(tiny(seq_len=n, eval_tokens=1024)).evaluation() for n in (16, 64))
    assert np.array_equal(short[:, :-1].flatten(), long[:, :-1].flatten())


def test_too_little_data_is_told_in_numbers(tiny: Callable[..., Arm]) -> None:
    held_out = len(load_corpus("shakespeare", "bytes").val) - 1
    with pytest.raises(NotEnoughData, match=rf"1,000,000.*{held_out:,} tokens.*lower eval_tokens"):
        Batches.of(tiny(eval_tokens=1_000_000))
    assert len(Batches.of(tiny(eval_tokens=held_out // 16 * 16)).evaluation()) == held_out // 16
    with pytest.raises(NotEnoughData, match=r"bias_tokens is 10,000,000.*training sequences"):
        Batches.of(tiny(bias_tokens=10_000_000))


def test_the_default_trial_has_enough_data() -> None:
    Batches.of(Trial())


def test_what_is_not_prepared_is_told_with_the_command(tiny: Callable[..., Arm]) -> None:
    with pytest.raises(
        UserError, match="fineweb is not prepared: xsa data prepare fineweb --tokenizer bytes"
    ):
        check_data([tiny(), tiny(dataset="fineweb")])


def test_looking_up_data_sets_needs_no_torch() -> None:
    code = "import sys, trainer.data; from schemas.trial import Trial; trainer.data.check_data([Trial(tokenizer='bytes')]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
