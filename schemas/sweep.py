"""A sweep: one YAML file that says which trials are wanted, and how they are run."""

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from schemas.axis import Float, Int
from schemas.errors import UserError
from schemas.evals import PRESETS, EvalKey
from schemas.loader import Document, Where, load_document, parse_document
from schemas.names import unknown_name
from schemas.secret import refuse_secret
from schemas.trial import AXES, Trial


class Runtime(BaseModel):
    """How trials are executed and looked at.

    Nothing here changes an arm's identity, nor its numbers beyond rounding (`threads`, `micro_batch`
    and the device order sums differently).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    cpus_per_trial: Float = Field(1.0, gt=0)
    """CPU cores that Ray reserves for a trial."""
    gpus_per_trial: Float = Field(0.0, ge=0)
    """GPUs that Ray reserves for a trial: whole ones, or below 1 a share of one; 0 trains on the CPU."""
    accelerator_type: str | None = None
    """Kind of GPU a trial needs, by Ray's name for it, such as `H100`."""
    custom_resources: dict[str, Float] = Field(default_factory=dict)
    """Other resources of the cluster that Ray reserves for a trial, by name."""
    memory_gib_per_trial: Float | None = Field(None, gt=0)
    """Memory in GiB that Ray reserves for a trial. None: nothing is reserved, and a CPU trial keeps below 4."""
    reuse_workers: bool | None = None
    """Whether a process trains one trial after the other. None: on CPUs, where loading torch takes longer than
    a small trial; a GPU trial gets a process of its own, and inherits no memory."""
    threads: Int = Field(1, ge=1)
    """Threads of one CPU trial. Recorded with each attempt, because it changes rounding."""
    micro_batch: Int | None = Field(None, ge=1)
    """Sequences in one forward pass; a step's others are accumulated. None: as many as fit the memory."""
    activation_checkpointing: bool | None = None
    """Whether blocks are computed again in the backward pass instead of kept: a third more work, far less memory.
    None: where one sequence would not fit the memory otherwise. The numbers change by rounding at most."""
    compile: Literal["auto", "off", "on", "graphs"] = "auto"
    """Whether torch.compile compiles the layers: `auto` does on a GPU. `graphs` replays them as CUDA graphs too,
    where a step is one micro-batch. Where compiling fails, a trial runs eagerly and says why."""
    log_every: Int = Field(1, ge=1)
    """Steps between training-loss rows."""
    eval_every: Int = Field(100, ge=1)
    """Steps between held-out evaluations; the first step and the last are always evaluated."""
    bias_every: Int = Field(500, ge=1)
    """Steps between measurements of the bias metrics; the first step and the last always are."""
    checkpoint_every: Int = Field(100, ge=1)
    """Steps between checkpoints."""
    keep_checkpoints: Int = Field(2, ge=1)
    """Checkpoints kept of an unfinished arm. A finished one keeps its final weights alone."""
    max_hours: Float | None = Field(None, gt=0)
    """Hours after which a trial checkpoints and ends as `timeout`. None: it may take what it takes."""
    stop_after_failures: Int = Field(5, ge=1)
    """Failures of one kind in a row after which a run starts nothing more."""
    avoid_node_after: Int = Field(3, ge=1)
    """Failures in a row on one node after which a run uses the others alone."""
    data: str | None = None
    """Folder, or fsspec URL without a password, of the prepared data sets. None: `data/` beside the storage."""
    min_free_gib: Float = Field(1.0, ge=0)
    """Free space in GiB on the storage below which a run starts nothing more."""

    @field_validator("gpus_per_trial")
    @classmethod
    def _are_whole(cls, gpus: float) -> float:
        if gpus > 1 and not gpus.is_integer():
            raise ValueError("is neither a share of one GPU, below 1, nor a number of whole ones")
        return gpus

    @field_validator("data")
    @classmethod
    def _is_open(cls, data: str | None) -> str | None:
        refuse_secret(data or "")
        return data

    @field_validator("custom_resources")
    @classmethod
    def _are_custom(cls, resources: dict[str, float]) -> dict[str, float]:
        for name, amount in resources.items():
            if not name or name.split("_")[0].upper() in ("CPU", "GPU", "MEMORY", "OBJECT"):
                raise ValueError(
                    f"names '{name}', which is no custom resource; cpus_per_trial, gpus_per_trial and "
                    "memory_gib_per_trial are for CPU, GPU and memory"
                )
            if amount <= 0:
                raise ValueError(f"asks for {amount:g} of '{name}'; write more than 0, or leave it out")
        return resources


class Evals(BaseModel):
    """What finished arms are asked downstream, by lm-eval. Never changes an arm's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    tasks: list[str]
    """The harness's names of tasks; `paper8` stands for the paper's eight."""
    limit: Int | None = Field(None, ge=1)
    """Only so many first items of each task. None: all of them."""
    num_fewshot: Int = Field(0, ge=0)
    """Solved examples in each prompt."""
    batch_size: Int = Field(16, ge=1)
    """Contexts that are read at once, with all that is scored after them."""

    @field_validator("tasks")
    @classmethod
    def _are_distinct(cls, names: list[str]) -> list[str]:
        tasks = [task for name in names for task in PRESETS.get(name, (name,))]
        if not tasks:
            raise ValueError("names no task; name at least one, such as paper8")
        for i, task in enumerate(tasks):
            if task in tasks[:i]:
                raise ValueError(f"names {task} twice")
        return tasks

    def wanted(self) -> list[EvalKey]:
        """Return what an arm must have a result of."""
        return [EvalKey(task, self.num_fewshot, self.limit) for task in self.tasks]


class Sweep(BaseModel):
    """A named set of trials: `base` values, and every combination of `list`, `grid` and `seeds`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """The sweep's identity; the file's name without its ending unless given."""
    description: str = ""
    """What the sweep asks, in a sentence, for the report."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Values that all trials share."""
    grid: dict[str, list[Any]] | None = None
    """Axes and the values each takes: every combination is a trial."""
    cells: list[dict[str, Any]] | None = Field(None, alias="list")
    """Sets of values, instead of or besides the grid."""
    seeds: list[Int] | None = None
    """Seeds, each of which repeats every trial."""
    runtime: Runtime = Runtime()
    """How the trials are executed."""
    evals: Evals | None = None
    """The downstream tasks that finished arms are evaluated on."""
    source: str = Field("", exclude=True)
    """The text of the file, for provenance. Set by `load`."""
    _document: Document | None = None
    """The file with its line numbers, for messages. Set by `load`."""
    _ids: dict[tuple[str, str], str] = {}
    """The prepared data by dataset and tokenizer. Set by `on_data`."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check the sweep file at `path`. Raises `UserError` with file, line and key."""
        return cls._of(load_document(path), name=path.stem)

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read and check a sweep file's text, as a store keeps it. Raises `UserError` with line and key."""
        return cls._of(parse_document(text, f"sweep {name}"), name=name)

    @classmethod
    def _of(cls, document: Document, name: str) -> Self:
        if "source" in document.value:  # a field of this model, but not a key of the file
            raise document.error(("source",), str(unknown_name("key", "source", _keys(cls))))
        values = {"name": name} | document.value
        try:
            sweep = cls(**values, source=document.text)
        except ValidationError as error:
            raise _explain(document, cls, error) from None
        sweep._check_values(document)
        sweep._document = document
        sweep.trials()
        return sweep

    def trials(self) -> list[Trial]:
        """Return the distinct trials, in the order of the file."""
        return list(self._distinct)

    def on_data(self, ids: Mapping[tuple[str, str], str]) -> Self:
        """Return the sweep on prepared data, given the `data_id` of each dataset and tokenizer."""
        resolved = self.model_copy()
        resolved._ids = dict(ids)
        resolved.__dict__.pop("_distinct", None)  # the cached trials, which were those without data
        return resolved

    @cached_property
    def _distinct(self) -> list[Trial]:
        return list({trial.id: trial for trial in self._expand()}.values())

    def varied(self) -> list[str]:
        """Return the names of the axes that take more than one value in this sweep."""
        trials = self.trials()
        names = [name for name in AXES if len({getattr(trial, name) for trial in trials}) > 1]
        # The name of the data tells them apart, where it can.
        return [name for name in names if name != "data_id" or "dataset" not in names]

    def _axes(self) -> dict[str, list[Any]]:
        return (self.grid or {}) | ({"seed": list(self.seeds)} if self.seeds is not None else {})

    def _expand(self) -> Iterator[Trial]:
        axes = self._axes()
        for cell in self.cells if self.cells is not None else [{}]:
            for combination in itertools.product(*axes.values()):
                own = cell | dict(zip(axes, combination, strict=True))
                try:
                    trial = Trial(**self.base | own)
                    data_id = self._ids.get((trial.dataset, trial.tokenizer))
                    yield trial.model_copy(update={"data_id": data_id}) if data_id else trial
                except ValidationError as error:
                    message = str(error.errors()[0].get("ctx", {}).get("error", error.errors()[0]["msg"]))
                    if self._document is None:
                        raise UserError(message) from None
                    which = ", ".join(f"{name}={value}" for name, value in own.items()) or "base"
                    raise self._document.error((), f"trial with {which}: {message}") from None

    def _check_values(self, document: Document) -> None:
        """Check each value by itself, so that the message points at its line."""
        for where, values in (
            ("base", {(name,): (name, [value]) for name, value in self.base.items()}),
            ("grid", {(name,): (name, values) for name, values in (self.grid or {}).items()}),
            ("list", {(i, k): (k, [v]) for i, cell in enumerate(self.cells or []) for k, v in cell.items()}),
            ("seeds", {(): ("seed", self.seeds)} if self.seeds is not None else {}),
        ):
            for place, (name, candidates) in values.items():
                if name not in AXES:
                    raise document.error((where, *place), str(unknown_name("axis", name, AXES)))
                if name == "data_id":
                    raise document.error((where, *place), "it follows from the data; name the dataset alone.")
                for i, value in enumerate(candidates):
                    single = where in ("base", "list")
                    at: Where = (where, *place) if single else (where, *place, i)
                    try:
                        AXES[name].check(value)
                    except UserError as error:
                        raise document.error(at, str(error)) from None
                    if value in candidates[:i]:
                        raise document.error(at, f"{value!r} is listed twice.")
        self._check_emptiness(document)

    def _check_emptiness(self, document: Document) -> None:
        for key, value in (("grid", self.grid), ("list", self.cells), ("seeds", self.seeds)):
            if key in document.value and not value:
                raise document.error(
                    (key,), f"{key} is empty, so there is nothing to run; give it values or leave it out."
                )
        for name, values in (self.grid or {}).items():
            if not values:
                raise document.error(
                    ("grid", name), f"{name} has no values, so there is nothing to run; give it at least one."
                )
        if self.seeds is not None and "seed" in (self.grid or {}):
            raise document.error(("seeds",), "the seed is also an axis of the grid; keep one of the two.")
        for i, cell in enumerate(self.cells or []):
            for name in cell.keys() & self._axes().keys():
                also = "seeds" if self.seeds is not None and name == "seed" else "the grid"
                raise document.error(("list", i, name), f"{name} is also in {also}; keep one of the two.")


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items() if name != "source"]


def _explain(document: Document, model: type[BaseModel], error: ValidationError) -> UserError:
    """Turn Pydantic's first complaint about a sweep's own keys into one line."""
    # A key that is not known often is what another, missing one was meant to be.
    first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    where = tuple(first["loc"])
    if first["type"] == "missing":
        return document.error(where, "this has to be given.")
    if first["type"] == "extra_forbidden":
        below: dict[str, type[BaseModel]] = {"runtime": Runtime, "evals": Evals}
        section = str(where[0]) if len(where) > 1 else ""
        known, kind = _keys(below.get(section, model)), f"{section} setting" if section else "key"
        return document.error(where, str(unknown_name(kind, str(where[-1]), known)))
    if first["type"] == "string_pattern_mismatch":
        return document.error(
            where, f"'{first['input']}' cannot name a sweep; use letters, digits, '.', '_' and '-'."
        )
    if first["type"] == "value_error":
        said = "it" if where == ("runtime", "data") else repr(first["input"])  # which may be a secret
        return document.error(where, f"{said} {first['ctx']['error']}.")
    return document.error(where, f"{first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}.")
