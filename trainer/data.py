"""Token streams, and the batches that are a pure function of (seed, data, step).

Nothing here keeps a position: batch `s` is computed, so that a resumed arm and the other arm of
its pair read the same tokens. Embedded texts are tokenised here; prepared data are read from their
shards (`trainer.shards`). Only NumPy is needed; torch is not imported.
"""

import functools
import hashlib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schemas.dataset import EMBEDDED
from schemas.errors import UserError
from schemas.names import lookup
from schemas.trial import Trial
from trainer.shards import Shards
from trainer.token_cache import cached
from trainer.tokenizer import END_OF_TEXT, Tokens, load_tokenizer, read_asset, token_dtype, tokenizer_rules

HELD_OUT = 0.08
"""Least share of a data set's text that is held out, in whole documents."""
_SPLIT_SEED = "2357"
"""nanoGPT's split seed. For `shakespeare` it holds out King Lear, Julius Caesar, Pericles, The Rape
of Lucrece and The Merchant of Venice: 9 % of the text, and none of the pieces that are printed
twice in it (Comus, two of the sonnets)."""
_HASHED_BATCHES = 4
_BLOCK = 64
"""Batches whose places are computed at once: NumPy takes as long for those of one."""

Windows = npt.NDArray[np.int64]
"""Token ids [B, T + 1]: inputs are all but the last column, targets all but the first."""


class NotEnoughData(UserError):
    """A data set is too short for what a trial asks of it."""


def _shakespeare() -> list[str]:
    text = read_asset("shakespeare_milton.txt.xz").decode()
    return text.split(f"{END_OF_TEXT}\n")


DATASETS: dict[str, Callable[[], list[str]]] = {"shakespeare": _shakespeare}
"""By name, a function that returns a data set's documents."""


def split_documents(documents: list[str]) -> tuple[list[str], list[str]]:
    """Return (training, held-out) documents: a fixed pseudo-random choice of whole documents.

    Documents are held out in the order of a keyed hash of their text until they make up
    `HELD_OUT` of all characters, so the choice depends on nothing but the texts.
    """
    order = sorted(documents, key=lambda text: hashlib.sha256((_SPLIT_SEED + text).encode()).digest())
    wanted = HELD_OUT * sum(map(len, documents))
    held_out: list[str] = []
    while sum(map(len, held_out)) < wanted:
        held_out.append(order[len(held_out)])
    chosen = set(held_out)
    return [text for text in documents if text not in chosen], held_out


@dataclass(frozen=True)
class Corpus:
    """A tokenised data set; each document is followed by the end-of-text token."""

    train: Tokens | Shards
    val: Tokens | Shards
    sha256: str
    """Hash of both streams; of prepared data, their `data_id`."""


def open_corpus(trial: Trial, data_folder: str | None) -> Corpus:
    """Return a trial's tokens: embedded, or the prepared data with its `data_id`, whatever they are called.

    Raises `UserError` where the data folder does not have just those.
    """
    if not trial.data_id:
        if trial.dataset in EMBEDDED:
            return load_corpus(trial.dataset, trial.tokenizer)
        raise UserError(
            f"{trial.dataset} is not prepared: {prepare_command(trial.dataset, trial.tokenizer)}."
        )
    from trainer.data_folder import Library

    assert data_folder is not None, "whoever filled in data_id knows the data folder"
    prepared = Library(data_folder).with_id(trial.data_id)
    return Corpus(prepared.tokens("train"), prepared.tokens("val"), trial.data_id)


def prepare_command(dataset: str, tokenizer: str) -> str:
    """Return what to type to prepare a data set."""
    source = shlex.quote(dataset)
    return f"xsa data prepare {source}" + ("" if tokenizer == "gpt2" else f" --tokenizer {tokenizer}")


@functools.cache
def load_corpus(dataset: str, tokenizer: str) -> Corpus:
    """Return the tokens of a data set, computed once in a process. Raises `UnknownName`."""
    documents = lookup("dataset", dataset, DATASETS)()

    def encode(documents: list[str]) -> Tokens:
        encoder = load_tokenizer(tokenizer)
        end = np.array([encoder.eot], dtype=token_dtype(tokenizer))
        return np.concatenate([part for text in documents for part in (encoder.encode(text), end)])

    def streams() -> tuple[Tokens, Tokens]:
        train, val = split_documents(documents)
        return encode(train), encode(val)

    source = END_OF_TEXT.join([tokenizer_rules(tokenizer), _SPLIT_SEED, str(HELD_OUT), *documents])
    (train, val), sha256 = cached(hashlib.sha256(source.encode()).hexdigest(), streams)
    return Corpus(train, val, sha256)


def permute(index: npt.NDArray[np.uint64], n: int, *, key: str) -> Windows:
    """Return where a keyed pseudo-random permutation of range(n) sends each of `index`.

    A Feistel network of six rounds is a bijection of [0, 4^h); walking its cycles until the value
    falls below n restricts it to one of [0, n). Nothing of size n is ever stored.
    """
    half_bits = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
    mask = np.uint64((1 << int(half_bits)) - 1)
    round_keys = np.frombuffer(hashlib.sha512(key.encode()).digest(), dtype="<u8")[:6]
    value = index.astype(np.uint64)
    outside = np.ones(value.shape, dtype=bool)
    while outside.any():
        left, right = value[outside] >> half_bits, value[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        value[outside] = left << half_bits | right
        outside = value >= n
    return value.astype(np.int64)


def draw(index: npt.NDArray[np.uint64], n: int, *, key: str) -> npt.NDArray[np.int64]:
    """Return a pseudo-random number of range(n) for each of `index`, independent of every other."""
    keys = np.frombuffer(hashlib.sha512(key.encode()).digest(), dtype="<u8")[:2]
    return (_mix(_mix(index ^ keys[0]) ^ keys[1]) % np.uint64(n)).astype(np.int64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64 bits (the finaliser of splitmix64; products wrap)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _positions(block: int, size: int) -> npt.NDArray[np.uint64]:
    """Return the numbers of the sequences in each batch of a block, counted from the first of all."""
    return np.arange(block * _BLOCK * size, (block + 1) * _BLOCK * size, dtype=np.uint64)


@functools.lru_cache(maxsize=2)
def _epochs(name: str, block: int, size: int, n: int) -> Windows:
    """Return which of `n` windows are in each batch [_BLOCK, size] of a block: all of them once an epoch."""
    position = _positions(block, size)
    epoch, index = position // np.uint64(n), position % np.uint64(n)
    window = np.empty(position.shape, dtype=np.int64)
    for number in np.unique(epoch):
        window[epoch == number] = permute(index[epoch == number], n, key=f"train,{name},{number}")
    return window.reshape(_BLOCK, size)


@functools.lru_cache(maxsize=2)
def _crops(name: str, block: int, size: int, n: int) -> Windows:
    """Return at which of the first `n` tokens the sequences of each batch [_BLOCK, size] of a block begin."""
    return draw(_positions(block, size), n, key=f"crops,{name}").reshape(_BLOCK, size)


@dataclass(frozen=True)
class Batches:
    """The sequences that a trial trains on, is evaluated on, and has its bias measured on."""

    trial: Trial
    corpus: Corpus

    @classmethod
    def of(cls, trial: Trial, data_folder: str | None = None) -> "Batches":
        """Load the trial's data. Raises `UserError` where they are not there, or too short for the trial."""
        batches = cls(trial, open_corpus(trial, data_folder))
        held_out = len(batches.corpus.val) - 1
        remedy = "" if trial.dataset in EMBEDDED else ", or prepare the data with a larger --held-out"
        if trial.eval_tokens > held_out:
            raise NotEnoughData(
                f"eval_tokens is {trial.eval_tokens:,}, but {trial.dataset} holds out {held_out:,} tokens "
                f"(tokenizer {trial.tokenizer}); lower eval_tokens to at most that{remedy}."
            )
        if trial.bias_tokens > batches.n_windows * trial.seq_len:
            raise NotEnoughData(
                f"bias_tokens is {trial.bias_tokens:,}, but {trial.dataset} has {batches.n_windows:,} "
                f"training sequences of seq_len {trial.seq_len:,} (tokenizer {trial.tokenizer}); "
                "lower one of the two."
            )
        return batches

    @property
    def n_windows(self) -> int:
        """Training sequences in one epoch: windows of `seq_len` tokens, side by side."""
        return (len(self.corpus.train) - 1) // self.trial.seq_len

    def train(self, step: int) -> Windows:
        """Return batch `step` (from 0).

        Sampling `epoch` visits every window once in each epoch, in its own order. `random_crops` is
        nanoGPT's: each sequence begins at a random token, drawn anew, with replacement.
        """
        block, row = divmod(step, _BLOCK)
        name, size = f"{self.trial.seed},{self.corpus.sha256}", self.trial.batch_size
        if self.trial.sampling == "random_crops":
            begins = _crops(name, block, size, len(self.corpus.train) - self.trial.seq_len)[row]
        else:
            begins = _epochs(name, block, size, self.n_windows)[row] * self.trial.seq_len
        return self._gather(self.corpus.train, begins)

    def evaluation(self) -> Windows:
        """Return the held-out sequences: the first `eval_tokens` of the held-out stream."""
        return self._gather(self.corpus.val, np.arange(0, self.trial.eval_tokens, self.trial.seq_len))

    def bias(self) -> Windows:
        """Return the training sequences of the bias metrics, the same ones for every seed."""
        index = np.arange(self.trial.bias_tokens // self.trial.seq_len, dtype=np.uint64)
        window = permute(index, self.n_windows, key=f"bias,{self.corpus.sha256}")
        return self._gather(self.corpus.train, window * self.trial.seq_len)

    def sha256(self) -> str:
        """Return the hash of the first batches."""
        digest = hashlib.sha256()
        for step in range(min(_HASHED_BATCHES, self.trial.steps)):
            digest.update(self.train(step).astype("<i8").tobytes())
        return digest.hexdigest()

    def _gather(self, tokens: Tokens | Shards, begins: npt.NDArray[np.int64]) -> Windows:
        """Return the windows that begin at these tokens."""
        length, places = self.trial.seq_len + 1, begins.tolist()
        windows = np.empty((len(places), length), dtype=np.int64)
        for row, begin in enumerate(places):
            windows[row] = tokens[begin : begin + length]
        if isinstance(tokens, Shards):
            tokens.check_ids(places, windows)
        return windows


def check_data(trials: Iterable[Trial], data_folder: str | None = None) -> None:
    """Check that there is data for each trial, once for all that need the same.

    Raises:
        UserError: there is none in the data folder.
        NotEnoughData: it is too short.
    """
    needs = {(t.dataset, t.data_id, t.tokenizer, t.seq_len, t.eval_tokens, t.bias_tokens): t for t in trials}
    for trial in needs.values():
        Batches.of(trial, data_folder)
