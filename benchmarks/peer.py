"""The peer of `benchmarks.throughput`: nanoGPT's model, as it ships or written anew here.

Ours can take the peer's place: the same blocks, weights and loss, so that only the way of computing differs.
"""

import contextlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from schemas.sizes import SIZES
from schemas.trial import Arm, Trial
from trainer.model import GPT, INIT_STD, build


class Case(NamedTuple):
    """What is trained: a model and its batch."""

    model_size: str
    seq_len: int
    batch_size: int
    vocab: int

    @property
    def n_layer(self) -> int:
        """Transformer blocks."""
        return SIZES[self.model_size].n_layer

    @property
    def d_model(self) -> int:
        """Width of the residual stream, and of attention."""
        return SIZES[self.model_size].d_model

    @property
    def n_head(self) -> int:
        """Heads."""
        return SIZES[self.model_size].n_head

    @property
    def tokens(self) -> int:
        """Tokens in a step."""
        return self.seq_len * self.batch_size

    @property
    def flops(self) -> float:
        """Floating-point operations of a step: 6 a weight that multiplies, and 12 L C T for attention."""
        weights = 12 * self.n_layer * self.d_model**2 + self.vocab * self.d_model
        return self.tokens * (6.0 * weights + 12.0 * self.n_layer * self.d_model * self.seq_len)


CASES = {
    "toy": Case("toy", 64, 16, 50304),
    "10M": Case("10M", 256, 12, 50304),
    "10M-small-vocabulary": Case("10M", 256, 12, 4096),
}


class _Block(nn.Module):
    """Attention and MLP, their parts named as nanoGPT names them."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        C = case.d_model
        self.n_head = case.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
        self.attn = nn.ModuleDict(
            {"c_attn": nn.Linear(C, 3 * C, bias=False), "c_proj": nn.Linear(C, C, bias=False)}
        )
        self.mlp = nn.ModuleDict(
            {"c_fc": nn.Linear(C, 4 * C, bias=False), "c_proj": nn.Linear(4 * C, C, bias=False)}
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attn["c_attn"](self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn["c_proj"](y.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x))))
        return out


class PlainGPT(nn.Module):
    """nanoGPT's model written anew: learned positions, tied embeddings, the logits of all tokens at once."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        C = case.d_model
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(case.vocab, C),
                "wpe": nn.Embedding(case.seq_len, C),
                "h": nn.ModuleList(_Block(case) for _ in range(case.n_layer)),
                "ln_f": nn.LayerNorm(C, bias=False),
            }
        )
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual = name.endswith("c_proj.weight")
                nn.init.normal_(weight, 0, INIT_STD / (2 * case.n_layer) ** 0.5 if residual else INIT_STD)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, T, V] and the mean cross entropy of `targets` [B, T]."""
        parts = self.transformer
        x = parts["wte"](tokens) + parts["wpe"](torch.arange(tokens.shape[1]))
        for block in parts["h"]:  # type: ignore[union-attr]
            x = block(x)
        logits = F.linear(parts["ln_f"](x), parts["wte"].weight)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(
        self, weight_decay: float, lr: float, betas: tuple[float, float], _: str
    ) -> torch.optim.Optimizer:
        """Return AdamW as nanoGPT has it on a CPU: not fused."""
        groups = [
            {"params": [w for w in self.parameters() if w.ndim == ndim], "weight_decay": decay}
            for ndim, decay in ((2, weight_decay), (1, 0.0))
        ]
        return torch.optim.AdamW(groups, lr=lr, betas=betas)


def make_peer(case: Case, checkout: Path | None) -> Any:
    """Return the peer's model: of a checkout of nanoGPT, or `PlainGPT`. Its weights are always the same."""
    torch.manual_seed(1337)
    if checkout is None:
        return PlainGPT(case)
    spec = importlib.util.spec_from_file_location("nanogpt_model", checkout / "model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        block_size=case.seq_len,
        vocab_size=case.vocab,
        n_layer=case.n_layer,
        n_head=case.n_head,
        n_embd=case.d_model,
        dropout=0.0,
        bias=False,
    )
    with contextlib.redirect_stdout(sys.stderr):
        return module.GPT(config)


def arm_of(case: Case, dtype: str, xsa_lambda: float) -> Arm:
    """Return the settings of ours at this case."""
    trial = Trial.model_validate(
        {
            "model_size": case.model_size,
            "seq_len": case.seq_len,
            "tokens_per_step": case.tokens,
            "eval_tokens": case.seq_len,
            "bias_tokens": case.seq_len,
            "xsa_lambda": xsa_lambda,
            "dtype": dtype,
        }
    )
    return trial.xsa


class _LearnedPositions(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weight[: x.shape[1]]


def build_with(arm: Arm, vocab: int) -> GPT:
    """Return an arm's model with the first words of its vocabulary alone."""
    model, _ = build(arm, torch.device("cpu"))
    model.wte = nn.Embedding.from_pretrained(model.wte.weight[:vocab].detach(), freeze=False)
    return model


def make_ours(case: Case, dtype: str, xsa_lambda: float) -> GPT:
    """Return our own model, its vocabulary cut to the case's."""
    return build_with(arm_of(case, dtype, xsa_lambda), case.vocab)


def make_twin(case: Case, dtype: str, checkout: Path | None) -> GPT:
    """Return our model as the peer's: its weights, learned positions for rotary ones, no first LayerNorm."""
    model = make_ours(case, dtype, 0.0)
    theirs = make_peer(case, checkout).state_dict()
    model.ln_e = _LearnedPositions(theirs["transformer.wpe.weight"])  # type: ignore[assignment]
    model.cos.fill_(1)
    model.sin.fill_(0)
    weights = {
        "wte.weight": theirs["transformer.wte.weight"],
        "ln_f.weight": theirs["transformer.ln_f.weight"],
    }
    weights["ln_e.weight"] = theirs["transformer.wpe.weight"]
    for layer in range(case.n_layer):
        block = {
            name.removeprefix(f"transformer.h.{layer}."): weight
            for name, weight in theirs.items()
            if name.startswith(f"transformer.h.{layer}.")
        }
        q, k, v = block.pop("attn.c_attn.weight").chunk(3)
        block |= {"attn.c_q.weight": q, "attn.c_k.weight": k, "attn.c_v.weight": v}
        weights |= {f"blocks.{layer}.{name.replace('mlp.', '')}": weight for name, weight in block.items()}
    model.load_state_dict(weights)
    return model
