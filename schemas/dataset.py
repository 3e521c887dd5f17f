"""What the axes `dataset` and `tokenizer` may say: names of texts, where they are, and sizes of vocabularies."""

from dataclasses import dataclass
from typing import Literal

from schemas.errors import UserError
from schemas.names import unknown_name

EMBEDDED = ("shakespeare",)
"""Texts that ship with the program."""
PRESETS = {
    "wikitext": "hf:Salesforce/wikitext:wikitext-103-raw-v1",
    "tinystories": "hf:roneneldan/TinyStories",
    "fineweb": "hf:HuggingFaceFW/fineweb:sample-100BT",
}
"""Short names of texts on the Hugging Face Hub. `fineweb` is the paper's FineWeb-100BT."""
_FORMS = ("text:PATH", "jsonl:PATH[#FIELD]", "parquet:PATH[#FIELD]", "hf:OWNER/NAME[:CONFIG][#FIELD]")
_KINDS = tuple(form.partition(":")[0] for form in _FORMS)

VOCABULARIES = {
    "gpt2": 50_257,
    "bytes": 257,
    "r50k_base": 50_257,
    "p50k_base": 50_281,
    "p50k_edit": 50_284,
    "cl100k_base": 100_277,
    "o200k_base": 200_019,
    "o200k_harmony": 201_088,
}
"""Tokenizers and the number of their ids, special ones included: `gpt2`, `bytes`, and tiktoken's others."""


@dataclass(frozen=True)
class Source:
    """Where a data set's documents come from."""

    kind: Literal["embedded", "text", "jsonl", "parquet", "hf"]
    where: str
    """A name, a path that may hold `*`, or a repository of the Hub."""
    config: str | None = None
    """The repository's configuration; None: its default."""
    field: str = "text"
    """The field, or column, with the text."""

    @property
    def label(self) -> str:
        """The one way to write this source."""
        if self.kind == "embedded":
            return self.where
        config = f":{self.config}" if self.config else ""
        return f"{self.kind}:{self.where}{config}" + ("" if self.field == "text" else f"#{self.field}")

    @property
    def is_local(self) -> bool:
        """Whether it is files on this machine."""
        return self.kind in ("text", "jsonl", "parquet")


def parse_source(dataset: str) -> Source:
    """Return what a value of the axis `dataset` means. Raises `UserError`, with the nearest name for a typo."""
    if dataset in EMBEDDED:
        return Source("embedded", dataset)
    kind, colon, where = PRESETS.get(dataset, dataset).partition(":")
    if not colon:
        raise unknown_name("dataset", dataset, [*EMBEDDED, *PRESETS, *_FORMS])
    field = ""
    if kind != "text":
        where, _, field = where.partition("#")
    if kind == "hf":
        repository, _, config = where.partition(":")
        owner, _, name = repository.partition("/")
        if not owner or not name or "/" in name:
            raise UserError(
                f"Dataset '{dataset}' names no repository: write hf:OWNER/NAME or hf:OWNER/NAME:CONFIG."
            )
        return Source("hf", repository, config or None, field or "text")
    if kind not in ("text", "jsonl", "parquet"):
        raise unknown_name("kind of dataset", kind, _KINDS)
    if not where:
        raise UserError(f"Dataset '{dataset}' names no file: write {kind}:PATH.")
    return Source(kind, where, None, field or "text")  # type: ignore[arg-type] # checked in the line above


def check_dataset(dataset: str) -> str:
    """Return `dataset` if it has one of the forms. Raises `UserError`."""
    parse_source(dataset)
    return dataset


def check_tokenizer(tokenizer: str) -> str:
    """Return `tokenizer` if there is one of that name. Raises `UnknownName`."""
    if tokenizer not in VOCABULARIES:
        raise unknown_name("tokenizer", tokenizer, VOCABULARIES)
    return tokenizer
