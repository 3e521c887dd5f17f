"""What a model says of token sequences: log-probabilities of continuations, and greedy generation.

Sequences are padded on the right, where causal attention does not look. A context is read once for
all of its continuations: the longest is read along with it, the others from its keys and values.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.model import GPT, Observation, Past

Ids = tuple[int, ...]
"""Token ids in order."""
KV = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, as `Past` has them."""

_ROWS = 256
"""Rows of logits in memory at once."""


class Scored(NamedTuple):
    """A continuation's log-probability in nats, and whether greedy decoding would write just that."""

    logprob: float
    greedy: bool


class _Group(NamedTuple):
    """A context and all that is to be scored after it, the longest first: (index of the pair, ids)."""

    context: Ids
    continuations: list[tuple[int, Ids]]

    @property
    def trunk(self) -> Ids:
        """What is read in one go; a sequence's last token is predicted, not read."""
        return self.context + self.continuations[0][1][:-1]


class _Target(NamedTuple):
    """A token to be predicted: of which pair, and from which of the flattened hidden states."""

    row: int
    token: int
    pair: int


@torch.no_grad()
def score(
    model: GPT, pairs: Sequence[tuple[Ids, Ids]], *, batch_size: int, tick: Callable[[], None] = lambda: None
) -> list[Scored]:
    """Return what the model says of each (context, continuation), neither of them empty.

    Both together have at most `seq_len` + 1 tokens: the last is not read. `batch_size` contexts are
    read at once, which decides nothing but speed and memory (and rounding). `tick` is called
    before each batch, and may raise to end it.
    """
    members: defaultdict[Ids, list[tuple[int, Ids]]] = defaultdict(list)
    for i, (context, continuation) in enumerate(pairs):
        members[context].append((i, continuation))
    groups = [
        _Group(context, sorted(those, key=lambda one: -len(one[1]))) for context, those in members.items()
    ]
    groups.sort(key=lambda group: (-len(group.trunk), group.context))  # the largest batch comes first
    logprobs, greedy = [0.0] * len(pairs), [True] * len(pairs)
    for start in range(0, len(groups), batch_size):
        tick()
        targets, values, hits = _score_batch(model, groups[start : start + batch_size])
        for target, value, hit in zip(targets, values.tolist(), hits.tolist(), strict=True):
            logprobs[target.pair] += value
            greedy[target.pair] &= hit
    return [Scored(*both) for both in zip(logprobs, greedy, strict=True)]


def _score_batch(model: GPT, groups: Sequence[_Group]) -> tuple[list[_Target], Tensor, Tensor]:
    """Return the tokens to predict after these contexts, their log-probabilities, and which are the likeliest."""
    trunks = [group.trunk for group in groups]
    targets: list[_Target] = []
    width = max(map(len, trunks))
    branches: list[list[tuple[int, Ids]]] = []
    for g, (context, ((pair, longest), *others)) in enumerate(groups):
        last = g * width + len(context) - 1
        targets += [_Target(last + j, token, pair) for j, token in enumerate(longest)]
        targets += [_Target(last, ids[0], i) for i, ids in others]
        branches.append([(i, ids) for i, ids in others if len(ids) > 1])
    kv: KV = []
    states = _read(model, trunks, kv if any(branches) else None).flatten(0, 1)
    if kv:
        twigs = [[ids[:-1] for _, ids in own] for own in branches]
        seen = [len(group.context) for group in groups]
        after = _read_after(model, kv, seen, twigs).flatten(0, 1)
        stride = len(after) // len(groups)
        for g, own in enumerate(branches):
            row = len(states) + g * stride
            for i, ids in own:
                targets += [_Target(row + j, token, i) for j, token in enumerate(ids[1:])]
                row += len(ids) - 1
        states = torch.cat((states, after))
    targets.sort()
    return targets, *_predict(model, states, targets)


def _pad(rows: Sequence[Ids], device: torch.device) -> Tensor:
    """Return rows of ids as one tensor, shorter ones filled with 0 on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)


def _read(model: GPT, rows: Sequence[Ids], kv: KV | None) -> Tensor:
    """Return the hidden states [B, T, C] of sequences from their beginning; add keys and values to `kv`."""

    def keep(seen: Observation) -> None:
        if kv is not None:
            kv.append((seen.k, seen.v))

    with model.autocast():
        return model.forward(_pad(rows, model.cos.device), keep)


def _seen(model: GPT, kv: KV, lengths: Tensor) -> Tensor:
    """Return which of the past's positions belong to a sequence's first tokens [B, P]; input sinks do."""
    columns = torch.arange(kv[0][0].shape[2], device=lengths.device)
    return columns < model.n_input_sinks + lengths[:, None]


def _read_after(
    model: GPT,
    kv: KV,
    seen: Sequence[int],
    twigs: Sequence[Sequence[Ids]],
) -> Tensor:
    """Return the hidden states [B, S, C] of the twigs that go on from the first `seen` tokens of each sequence.

    The twigs of a sequence are laid out one after the other, and do not see each other.
    """
    device = model.cos.device
    tokens = _pad([tuple(t for ids in own for t in ids) for own in twigs], device)
    branch = _pad([tuple(b for b, ids in enumerate(own, 1) for _ in ids) for own in twigs], device)
    offset = _pad([tuple(j for ids in own for j in range(len(ids))) for own in twigs], device)
    lengths = torch.tensor(seen, device=device)
    S = tokens.shape[1]
    own_past = _seen(model, kv, lengths)[:, None].expand(-1, S, -1)
    siblings = (branch[:, :, None] == branch[:, None]).tril()
    past = Past(kv, lengths[:, None] + offset, torch.cat((own_past, siblings), dim=2)[:, None])
    with model.autocast():
        return model.forward(tokens, None, past)


def _predict(model: GPT, states: Tensor, targets: Sequence[_Target]) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target [N], and whether no token is likelier.

    `targets` are in the order of their rows, and each row's logits are made once, a few rows at a
    time: those of all positions of a batch would not fit. Softmax and sums are in float32.
    """
    rows, place = torch.unique_consecutive(torch.tensor([t.row for t in targets]), return_inverse=True)
    device = states.device
    ids = torch.tensor([t.token for t in targets], device=device)
    x = states[rows.to(device)]
    values, hits = [], []
    for start in range(0, len(rows), _ROWS):
        lo, hi = torch.searchsorted(place, torch.tensor([start, start + _ROWS])).tolist()
        logits = _logits(model, x[start : start + _ROWS])
        own = (place[lo:hi] - start).to(device)
        chosen = ids[lo:hi]
        values.append(logits[own, chosen] - logits.logsumexp(-1)[own])
        hits.append(logits.argmax(-1)[own] == chosen)
    return torch.cat(values), torch.cat(hits)


def _logits(model: GPT, x: Tensor) -> Tensor:
    """Return the logits [N, V] of hidden states [N, C] in float32, as the loss has them."""
    with model.autocast():
        return torch.nn.functional.linear(x, model.wte.weight).float()


@torch.no_grad()
def generate(
    model: GPT,
    contexts: Sequence[Ids],
    *,
    most: int,
    n_vocab: int,
    finished: Callable[[int, list[int]], bool],
) -> list[list[int]]:
    """Return what greedy decoding writes after each context: one batch, each at most `most` tokens.

    `finished` is asked, by a context's number and what it has got so far, whether it needs no more.
    A context and its `most` tokens have at most `seq_len` together. Ids from `n_vocab` on, which
    pad the vocabulary, are never written.
    """
    kv: KV = []
    hidden = _read(model, contexts, kv)
    lengths = torch.tensor([len(context) for context in contexts], device=hidden.device)
    visible = _seen(model, kv, lengths)
    last = hidden[torch.arange(len(contexts), device=hidden.device), lengths - 1]
    written: list[list[int]] = [[] for _ in contexts]
    running = set(range(len(contexts)))
    for step in range(most):
        tokens = _logits(model, last)[:, :n_vocab].argmax(-1, keepdim=True)
        for i, (token,) in enumerate(tokens.tolist()):
            if i in running:
                written[i].append(token)
                if finished(i, written[i]):
                    running.remove(i)
        if not running or step == most - 1:
            break
        visible = torch.nn.functional.pad(visible, (0, 1), value=True)
        grown: KV = []

        def grow(seen: Observation, kv: KV = kv, grown: KV = grown) -> None:
            k, v = kv[seen.layer]
            grown.append((torch.cat((k, seen.k), dim=2), torch.cat((v, seen.v), dim=2)))

        past = Past(kv, lengths[:, None] + step, visible[:, None, None])
        with model.autocast():
            last = model.forward(tokens, grow, past)[:, -1]
        kv = grown
    return written
