"""Every knob, once. A field here is an axis: key, limits, identity, column, filter and label in one.

Everything that decides an arm's weights and recorded numbers is here; everything else (devices,
paths, how often to look) is in `schemas.sweep.Runtime` and never changes an identity.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from schemas.axis import Axis, Float, Int, axis
from schemas.dataset import check_dataset, check_tokenizer
from schemas.names import lookup
from schemas.sizes import SIZES, Size, size_name

SEMANTICS_VERSION = 1
"""Bumped when the same settings would train to other numbers than before."""

_TOY = SIZES["toy"]


class Trial(BaseModel):
    """One cell of a sweep: the settings of a pair of arms, SA and XSA."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    # -- attention
    xsa_lambda: Float = axis(1.0, "λ", sa=0.0)
    """Strength of the exclusion: z = y - λ (y.v) v / |v|^2. 0 is standard attention, 1 is XSA."""
    xsa_layers: str = axis("all", "XSA layers", sa="all", commas=True)
    """Layers with XSA: `all`, `last:4`, or indices such as `0,3,5`."""
    n_sinks: Int = axis(0, "attention sinks", ge=0)
    """Attention sinks in each sequence (or, for kv, logit and zero sinks, in each layer)."""
    sink_kind: Literal["token", "kv", "logit", "zero"] = axis("token", "sink kind")
    """What a sink is: a learned input embedding, a learned key/value, a learned logit, or exp(0)."""

    # -- model
    model_size: str = axis("toy", "model size", identity=False)
    """Name of the shape (`xsa axes` lists them); the four numbers below override it one by one."""
    n_layer: Int = axis(_TOY.n_layer, "layers", ge=1, le=10000)
    """Transformer blocks. From `model_size` unless given."""
    d_model: Int = axis(_TOY.d_model, "model width", ge=8, le=1000000)
    """Width of the residual stream. From `model_size` unless given."""
    n_head: Int = axis(_TOY.n_head, "query heads", ge=1, le=10000)
    """Query heads. From `model_size` unless given."""
    d_head: Int = axis(_TOY.d_head, "head width", ge=2, le=10000)
    """Width of a head, even because of RoPE. From `model_size` unless given."""
    n_kv_head: Int = axis(_TOY.n_head, "key/value heads", ge=1)
    """Key/value heads, a divisor of `n_head` (grouped-query attention). `n_head` unless given."""
    qk_norm: bool = axis(False, "QK-norm")
    """Whether queries and keys are RMS-normalised per head before RoPE."""
    rope_base: Float = axis(10_000.0, "RoPE base", log=True, gt=1)
    """Base of the rotary position embedding."""

    # -- data
    dataset: Annotated[str, AfterValidator(check_dataset)] = axis("shakespeare", "dataset")
    """Text to train on: `shakespeare` ships with the program; `wikitext`, `tinystories`, `fineweb` or
    `hf:OWNER/NAME[:CONFIG]` are on the Hub; `text:PATH`, `jsonl:PATH` and `parquet:PATH` are files."""
    data_id: str = axis("", "data", before="")
    """What prepared data are, whatever they are called: a hash of their tokens, filled in where a sweep is
    read and never written in one. Empty for a text that ships with the program."""
    tokenizer: Annotated[str, AfterValidator(check_tokenizer)] = axis("gpt2", "tokenizer")
    """`gpt2`; `bytes`, the 256 bytes and an end-of-text token; or another of tiktoken's, such as `cl100k_base`."""
    sampling: Literal["epoch", "random_crops"] = axis("epoch", "sampling", before="epoch")
    """Each window of `seq_len` tokens once an epoch, or crops that begin anywhere, with replacement."""
    seq_len: Int = axis(2048, "sequence length", unit="tokens", log=True, ge=8)
    """Tokens in one training sequence."""
    tokens_per_step: Int = axis(524_288, "batch", unit="tokens", log=True, ge=8)
    """Tokens in one optimizer step, whatever the sequence length: a multiple of `seq_len`."""
    eval_tokens: Int = axis(65_536, "evaluation tokens", unit="tokens", log=True, ge=8)
    """Held-out tokens in one evaluation, always the same ones."""
    bias_tokens: Int = axis(16_384, "bias tokens", unit="tokens", log=True, ge=8)
    """Training tokens on which the per-layer bias metrics are measured, always the same ones."""

    # -- optimisation
    steps: Int = axis(1_000, "steps", log=True, ge=1)
    """Optimizer steps in the run."""
    lr: Float = axis(1e-3, "learning rate", log=True, gt=0)
    """Peak learning rate."""
    warmup_steps: Int = axis(0, "warm-up", unit="steps", ge=0)
    """Steps of linear warm-up to `lr`."""
    min_lr_ratio: Float = axis(0.1, "final lr / peak lr", ge=0, le=1)
    """Where the cosine ends, as a share of `lr`."""
    optimizer: Literal["adamw", "muon"] = axis("adamw", "optimizer")
    """AdamW on everything, or Muon on hidden matrices and AdamW on the rest."""
    weight_decay: Float = axis(0.1, "weight decay", ge=0)
    """Decoupled weight decay on every matrix, embeddings included."""
    beta1: Float = axis(0.9, "β1", ge=0, lt=1)
    """Decay of AdamW's first moment."""
    beta2: Float = axis(0.95, "β2", ge=0, lt=1)
    """Decay of AdamW's second moment."""
    grad_clip: Float = axis(1.0, "gradient clip", gt=0)
    """Largest norm of the whole gradient."""
    dtype: Literal["float32", "bfloat16"] = axis("float32", "precision")
    """Precision of the matrix products; weights and optimizer state are float32 in both."""
    seed: Int = axis(0, "seed", ge=0)
    """Decides initial weights and the order of the batches, the same in both arms of a pair."""

    @model_validator(mode="before")
    @classmethod
    def _fill_shape(cls, values: Any) -> Any:
        """Take from the named size what the numbers leave open."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        name = values.get("model_size", AXES["model_size"].default)
        shape = Size._fields[:4]
        given = {key: AXES[key].check(values[key]) for key in shape if key in values}
        if len(given) < len(shape) or (name not in SIZES and name != size_name(**given)):
            given = lookup("model size", name, SIZES)._asdict() | given
        numbers = {key: given[key] for key in shape}
        values.setdefault("n_kv_head", numbers["n_head"])
        return values | numbers | {"model_size": size_name(**numbers)}

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Refuse values that are each fine but not together."""
        for name in ("tokens_per_step", "eval_tokens", "bias_tokens"):
            if (tokens := getattr(self, name)) % self.seq_len:
                raise ValueError(
                    f"{name} {tokens:,} is not a multiple of seq_len {self.seq_len:,}; "
                    f"{max(1, tokens // self.seq_len) * self.seq_len:,} is."
                )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps {self.warmup_steps:,} is not below steps {self.steps:,}: the peak lr is never reached."
            )
        if self.d_head % 2:
            raise ValueError(f"d_head {self.d_head} is odd; RoPE turns pairs of numbers and needs it even.")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_kv_head {self.n_kv_head} does not divide n_head {self.n_head}.")
        self.xsa_layer_set()
        return self

    def xsa_layer_set(self) -> frozenset[int]:
        """Return the indices of the layers with XSA, or raise `ValueError`."""
        if self.xsa_layers == "all":
            return frozenset(range(self.n_layer))
        if match := re.fullmatch(r"last:([0-9]{1,6})", self.xsa_layers):
            count = int(match[1])
            if 1 <= count <= self.n_layer:
                return frozenset(range(self.n_layer - count, self.n_layer))
        elif re.fullmatch(r"[0-9]{1,6}(,[0-9]{1,6})*", self.xsa_layers):
            chosen = frozenset(map(int, self.xsa_layers.split(",")))
            if max(chosen) < self.n_layer:
                return chosen
        raise ValueError(
            f"xsa_layers '{self.xsa_layers}' names no layers of a {self.n_layer}-layer model; "
            f"write 'all', 'last:1' to 'last:{self.n_layer}', or indices from 0 to {self.n_layer - 1} such as '0,1'."
        )

    @property
    def batch_size(self) -> int:
        """Sequences in one optimizer step."""
        return self.tokens_per_step // self.seq_len

    @property
    def tokens(self) -> int:
        """Training tokens of one arm."""
        return self.tokens_per_step * self.steps

    @cached_property
    def sa(self) -> "Arm":
        """The baseline arm of this pair."""
        return _arm(*(0.0 if name == "xsa_lambda" else getattr(self, name) for name in AXES))

    @cached_property
    def xsa(self) -> "Arm":
        """The XSA arm of this pair: with λ = 0 the same arm as `sa`."""
        return self.sa if self.xsa_lambda == 0 else _arm(*(getattr(self, name) for name in AXES))

    @property
    def arms(self) -> "tuple[Arm, ...]":
        """The distinct arms of this pair, baseline first."""
        return (self.sa,) if self.xsa_lambda == 0 else (self.sa, self.xsa)

    @cached_property
    def id(self) -> str:
        """Identity: sha256 of the two arms' identities, in hex."""
        return hashlib.sha256(f"{self.sa.id}{self.xsa.id}".encode()).hexdigest()


class Arm(Trial):
    """One training run of one attention variant: a trial's settings, normalised."""

    @model_validator(mode="before")
    @classmethod
    def _normalise(cls, values: Any) -> Any:
        return normalise(values) if isinstance(values, dict) else values

    @property
    def name(self) -> Literal["sa", "xsa"]:
        """Which side of a pair this is."""
        return "sa" if self.xsa_lambda == 0 else "xsa"

    @cached_property
    def id(self) -> str:
        """Identity: sha256 in hex of everything that decides this arm's numbers."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def canonical(self) -> str:
        """Return the canonical JSON that is hashed: floats as their shortest exact text."""
        settings = {
            name: getattr(self, name)
            for name, a in AXES.items()
            if a.identity and not ("before" in a.history and a.history["before"] == getattr(self, name))
        }
        if self.data_id:
            del settings["dataset"]  # the same tokens are the same data, wherever they came from
        return _CANONICAL.encode({"semantics_version": SEMANTICS_VERSION, **settings})


def normalise(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return an arm's settings where those that have no effect take one value: equal runs, one identity."""
    values = dict(values)
    if values.get("xsa_lambda", AXES["xsa_lambda"].default) == 0:
        values |= {name: a.history["sa"] for name, a in AXES.items() if "sa" in a.history}
    if values.get("n_sinks", 0) == 0:
        values["sink_kind"] = AXES["sink_kind"].default
    if values.get("xsa_layers", "all") != "all":
        trial = Trial(**values)
        chosen = sorted(trial.xsa_layer_set())
        values["xsa_layers"] = "all" if len(chosen) == trial.n_layer else ",".join(map(str, chosen))
    return values


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


@lru_cache(maxsize=10_000)
def _arm(*values: Any) -> Arm:
    """Return the arm with a trial's values, in the order of `AXES`. Trials share most of their baselines.

    A trial has checked them, so they are not checked again: a sweep of ten thousand would wait for it.
    """
    return _ANY_ARM.model_copy(update=normalise(dict(zip(AXES, values, strict=True))))


AXES: dict[str, Axis] = {name: Axis.from_field(name, field) for name, field in Trial.model_fields.items()}
"""Every axis by name, in the order of declaration."""
_ANY_ARM = Arm()
"""Copied for each arm that need not be checked: three times as fast as `model_construct`."""
