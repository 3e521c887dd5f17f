"""A trained arm as lm-eval's language model: its text interface, over `trainer.lm_score`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from schemas.errors import UserError
from trainer.lm_score import Ids, generate, score
from trainer.model import GPT
from trainer.tokenizer import END_OF_TEXT, load_tokenizer

MAX_GENERATED = 256
"""Tokens that a task gets which does not say how many it wants, as in lm-eval's own adapter."""


class _Decoding(NamedTuple):
    """How a task wants its texts written."""

    most: int
    """Tokens, at most."""
    until: tuple[str, ...]
    """Texts at which writing ends, and which are cut off."""

    @classmethod
    def of(cls, asked: dict[str, Any], max_length: int) -> "_Decoding":
        """Return what the harness's generation settings mean. Raises `UserError`."""
        how = normalize_gen_kwargs(asked, MAX_GENERATED)
        if how["do_sample"]:
            raise UserError("the task asks for sampled texts, and an arm writes greedily alone")
        most = how["max_gen_toks"]
        if most >= max_length:
            raise UserError(
                f"the task lets a model write {most} tokens, and the arm reads no more than {max_length} (seq_len)"
            )
        return cls(most, tuple(handle_stop_sequences(how["until"], eos=END_OF_TEXT)))


class ArmLM(TemplateLM):  # type: ignore[misc] # lm-eval is not typed
    """Answers the harness's requests with one model, on the model's device and in its precision.

    What does not fit into the arm's `seq_len` loses its beginning, as in lm-eval's adapter for
    Hugging Face models. A continuation that alone is longer, which that one refuses, is scored in
    windows, as `loglikelihood_rolling` scores a text.
    """

    def __init__(self, model: GPT, *, batch_size: int, tick: Callable[[], None] = lambda: None) -> None:
        """Wrap `model`, to read `batch_size` contexts at once; `tick` is called before each batch."""
        super().__init__()
        self._model = model.eval()
        self._batch_size = batch_size
        self._tick = tick
        self._tokenizer = load_tokenizer(model.trial.tokenizer)
        self.max_length = model.trial.seq_len

    @property
    def eot_token_id(self) -> int:
        """Id of the end-of-text token, which is also what an empty context stands for."""
        return self._tokenizer.eot

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the ids of a text. There are no special tokens to add."""
        ids: list[int] = self._tokenizer.encode(string).tolist()
        return ids

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return log-probability and greediness of each (context, continuation)."""
        scored: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return scored

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        return self._score([self._windows(context, ids) for _, context, ids in requests])

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = True) -> list[float]:
        """Return the log-probability of each text, every token predicted once in windows of `seq_len`."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        return [
            logprob for logprob, _ in self._score([self._rolling(self.prefix_token_id, ids) for ids in texts])
        ]

    def _windows(self, context: list[int], continuation: list[int]) -> list[tuple[Ids, Ids]]:
        """Return the (context, continuation) pairs that fit the model and make up this one."""
        context = context or [self.prefix_token_id]  # of nothing but spaces, which went to the continuation
        if len(continuation) > self.max_length:
            return self._rolling(context[-1], continuation)
        kept = context[len(continuation) - self.max_length - 1 :]
        return [(tuple(kept), tuple(continuation))] if continuation else []

    def _rolling(self, before: int, ids: list[int]) -> list[tuple[Ids, Ids]]:
        windows = get_rolling_token_windows(ids, before, max_seq_len=self.max_length, context_len=1)
        return [(tuple(a), tuple(b)) for a, b in map(make_disjoint_window, windows)]

    def _score(self, parts: list[list[tuple[Ids, Ids]]]) -> list[tuple[float, bool]]:
        """Return the sum over the windows of each request, and whether all of it is greedy."""
        flat = [pair for windows in parts for pair in windows]
        scored = iter(score(self._model, flat, batch_size=self._batch_size, tick=self._tick))
        own = [[next(scored) for _ in windows] for windows in parts]
        return [(sum(s.logprob for s in windows), all(s.greedy for s in windows)) for windows in own]

    def generate_until(self, requests: list[Any], disable_tqdm: bool = True) -> list[str]:
        """Return what greedy decoding writes after each context, up to a stopping text. Raises `UserError`."""
        encoded = [(tuple(self.tok_encode(request.args[0])), request.args[1]) for request in requests]
        settings = [_Decoding.of(asked, self.max_length) for _, asked in encoded]
        order = sorted(range(len(requests)), key=lambda i: (settings[i], -len(encoded[i][0])))
        texts = [""] * len(requests)
        while order:
            how = settings[order[0]]
            batch = [i for i in order[: self._batch_size] if settings[i] == how]
            order = order[len(batch) :]
            self._tick()
            contexts = [encoded[i][0] or (self.prefix_token_id,) for i in batch]
            for i, text in zip(batch, self._write(contexts, how), strict=True):
                texts[i] = text
        return texts

    def _write(self, contexts: list[Ids], how: "_Decoding") -> list[str]:
        """Return what follows these contexts; of one that is too long, the end is read."""

        def text(ids: list[int]) -> str:
            return self._tokenizer.decode(np.array([i for i in ids if i != self.eot_token_id], np.uint32))

        def finished(_: int, ids: list[int]) -> bool:
            return ids[-1] == self.eot_token_id or any(stop in text(ids) for stop in how.until)

        written = generate(
            self._model,
            [context[how.most - self.max_length :] for context in contexts],
            most=how.most,
            n_vocab=self._tokenizer.n_vocab,
            finished=finished,
        )
        return [postprocess_generated_text(text(ids), list(how.until), None) for ids in written]
