"""The language model of the paper's section 4.1.

nanoGPT's pre-LN transformer with rotary positions instead of learned ones, a LayerNorm right after
the token embedding, an attention width that is independent of the model's, and tied embeddings.
There are no biases. B sequences of T tokens; C = d_model, H heads (H_kv for keys and values), D = d_head.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from schemas.trial import Trial
from trainer.attention import exclusive, rope_table, rotate
from trainer.head import linear_cross_entropy
from trainer.sinks import ColumnSinks, attend
from trainer.tokenizer import padded_vocab

INIT_STD = 0.02
QK_NORM_EPS = 1e-6


class Observation(NamedTuple):
    """The inside of one attention layer, for whoever measures it."""

    layer: int
    q: Tensor
    """Queries [B, H, T, D] as they entered the attention: after QK-norm and rotation."""
    k: Tensor
    """Keys [B, H_kv, T, D], likewise."""
    v: Tensor
    """Values [B, H_kv, T, D]. Like the keys, those of the tokens at hand alone, whatever came before."""
    y: Tensor
    """Attention outputs [B, H, T, D]."""
    z: Tensor
    """What went on to the output projection [B, H, T, D]."""
    sinks: ColumnSinks | None


Observe = Callable[[Observation], None]


class Past(NamedTuple):
    """What was read before T more tokens: P positions, of which each token may see some (a KV cache)."""

    kv: Sequence[tuple[Tensor, Tensor]]
    """Keys and values [B, H_kv, P, D] of each layer, as `Observation` has them: input sinks come first."""
    positions: Tensor
    """Where each token stands in its sequence [B, T], input sinks not counted."""
    visible: Tensor
    """Which of the past and of the tokens at hand each token sees [B, 1, T, P + T]."""


class Attention(nn.Module):
    """Causal self attention, exclusive with strength λ in the chosen layers."""

    def __init__(self, trial: Trial, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_head, self.n_kv_head, self.d_head = trial.n_head, trial.n_kv_head, trial.d_head
        self.qk_norm = trial.qk_norm
        self.xsa_lambda = trial.xsa_lambda if layer in trial.xsa_layer_set() else 0.0
        width, kv_width = trial.n_head * trial.d_head, trial.n_kv_head * trial.d_head
        self.c_q = nn.Linear(trial.d_model, width, bias=False)
        self.c_k = nn.Linear(trial.d_model, kv_width, bias=False)
        self.c_v = nn.Linear(trial.d_model, kv_width, bias=False)
        self.c_proj = nn.Linear(width, trial.d_model, bias=False)
        columns = trial.n_sinks > 0 and trial.sink_kind != "token"
        self.sinks = ColumnSinks(trial) if columns else None

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, observe: Observe | None, past: Past | None = None
    ) -> Tensor:
        """Return what is added to the residual stream [B, T, C], from its normalised state x."""
        # Queries and keys go through the same operations. Values apart: they are kept for the backward pass,
        # and as part of one tensor would keep its unturned queries and keys as well.
        qk = F.linear(x, torch.cat((self.c_q.weight, self.c_k.weight)))
        v = self.c_v(x).unflatten(-1, (self.n_kv_head, self.d_head)).transpose(1, 2)
        qk = torch.unflatten(qk, -1, (self.n_head + self.n_kv_head, self.d_head)).transpose(1, 2)
        if self.qk_norm:
            qk = F.rms_norm(qk, (self.d_head,), eps=QK_NORM_EPS)
        q, k = torch.split(rotate(qk, cos, sin), [self.n_head, self.n_kv_head], dim=1)
        if past is None:
            y = attend(q, k, v, self.sinks)
        else:
            keys, values = (torch.cat(both, dim=2) for both in zip(past.kv[self.layer], (k, v), strict=True))
            y = attend(q, keys, values, self.sinks, past.visible)
        z = exclusive(y, v, self.xsa_lambda)
        if observe is not None:
            observe(Observation(self.layer, q, k, v, y, z, self.sinks))
        out: Tensor = self.c_proj(z.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-LN attention and MLP, each added to the residual stream [B, T, C]."""

    def __init__(self, trial: Trial, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(trial.d_model, bias=False)
        self.attn = Attention(trial, layer)
        self.ln_2 = nn.LayerNorm(trial.d_model, bias=False)
        self.c_fc = nn.Linear(trial.d_model, 4 * trial.d_model, bias=False)
        self.c_proj = nn.Linear(4 * trial.d_model, trial.d_model, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, observe: Observe | None, past: Past | None = None
    ) -> Tensor:
        """Return the residual stream [B, T, C] after this block."""
        x = x + self.attn(self.ln_1(x), cos, sin, observe, past)
        out: Tensor = x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))
        return out


class GPT(nn.Module):
    """The model of a trial or an arm, whose names it reads directly."""

    cos: Tensor
    sin: Tensor

    def __init__(self, trial: Trial) -> None:
        super().__init__()
        self.trial = trial
        self.activation_checkpointing = False
        """Whether blocks are computed again in the backward pass instead of kept."""
        self.wte = nn.Embedding(padded_vocab(trial.tokenizer), trial.d_model)
        self.n_input_sinks = trial.n_sinks if trial.sink_kind == "token" else 0
        if self.n_input_sinks:
            self.sink = nn.Parameter(torch.empty(self.n_input_sinks, trial.d_model))
        self.ln_e = nn.LayerNorm(trial.d_model, bias=False)
        self.blocks = nn.ModuleList(Block(trial, layer) for layer in range(trial.n_layer))
        self.ln_f = nn.LayerNorm(trial.d_model, bias=False)
        positions = self.n_input_sinks + trial.seq_len
        for name, table in zip(
            ("cos", "sin"), rope_table(positions, trial.d_head, trial.rope_base), strict=True
        ):
            self.register_buffer(name, table, persistent=False)

    def forward(self, tokens: Tensor, observe: Observe | None = None, past: Past | None = None) -> Tensor:
        """Return the last hidden states [B, T, C] of `tokens` [B, T], T at most `seq_len`.

        Sink tokens take the first positions and go through the layers, exclusion included, like
        any other token; they are dropped at the end, so no loss is taken on them. After a `past`,
        which holds them, they are not read again.
        """
        n = self.n_input_sinks if past is None else 0
        x = self.wte(tokens)
        if n:
            x = torch.cat((self.sink.expand(len(x), -1, -1), x), dim=1)
        x = self.ln_e(x)
        if past is None:
            cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        else:
            where = past.positions + self.n_input_sinks
            cos, sin = self.cos[where].unsqueeze(1), self.sin[where].unsqueeze(1)
        for block in self.blocks:
            if self.activation_checkpointing and torch.is_grad_enabled():
                x = checkpoint(
                    block, x, cos, sin, observe, past, use_reentrant=False, preserve_rng_state=False
                )
            else:
                x = block(x, cos, sin, observe, past)
        out: Tensor = self.ln_f(x[:, n:])
        return out

    def autocast(self) -> torch.autocast:
        """Return the context in which the layers compute in the trial's precision."""
        return torch.autocast(self.cos.device.type, torch.bfloat16, enabled=self.trial.dtype == "bfloat16")

    def logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] in float32, padding of the vocabulary included."""
        with self.autocast():
            return F.linear(self(tokens), self.wte.weight).float()

    def loss(self, windows: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of predicting tokens 1..T of `windows` [B, T + 1]."""
        with self.autocast():
            x = self(windows[:, :-1])
        dtype = torch.bfloat16 if self.trial.dtype == "bfloat16" else torch.float32
        return linear_cross_entropy(x.flatten(0, 1), self.wte.weight, windows[:, 1:].flatten(), dtype=dtype)


def build(trial: Trial, device: torch.device) -> tuple[GPT, str]:
    """Return the initialised model and the sha256 of its initial weights.

    Each parameter has a generator of its own, seeded by (seed, name): a model with sinks starts
    from the same values elsewhere as one without. The draw is made on the CPU for any device.
    """
    model = _empty(trial)
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            _initialise(name, parameter, trial)
            digest.update(f"{name},{tuple(parameter.shape)}".encode())
            digest.update(parameter.numpy().data)
    return model.to(device), digest.hexdigest()


def restore(trial: Trial, weights: Mapping[str, Tensor], device: torch.device) -> GPT:
    """Return the model with these weights, all of them."""
    model = _empty(trial)
    model.load_state_dict(weights)
    return model.to(device)


def _empty(trial: Trial) -> GPT:
    """Return the model on the CPU, its weights still to be filled."""
    with torch.device("meta"):
        model = GPT(trial)
    model.to_empty(device="cpu")
    model.cos, model.sin = rope_table(len(model.cos), trial.d_head, trial.rope_base)
    return model


def _initialise(name: str, parameter: Tensor, trial: Trial) -> None:
    """GPT-2's initialisation: residual projections are smaller, by one over the root of their number."""
    if parameter.ndim == 1:
        parameter.fill_(1)
        return
    seed = hashlib.sha256(f"{trial.seed},{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(seed, "little"))
    std = INIT_STD / math.sqrt(2 * trial.n_layer) if name.endswith("c_proj.weight") else INIT_STD
    parameter.normal_(0, std, generator=generator)
