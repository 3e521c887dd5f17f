"""Small texts as users have them, and preparing them with few processes and no waiting."""

import json
from pathlib import Path
from typing import Any

from schemas.dataset import parse_source
from trainer.data_folder import Library, Prepared
from trainer.prepare import Asked

WORDS = [
    "the",
    "sun",
    "rose",
    "over",
    "a",
    "quiet",
    "town",
    "and",
    "nobody",
    "knew",
    "why",
    "it",
    "was",
    "late",
    "again",
]


def document(number: int) -> str:
    """A document of about 40 words, another for each number."""
    return " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(40)) + f" {number}."


DOCUMENTS = [document(i) for i in range(300)]


def write_text(path: Path, documents: list[str] = DOCUMENTS) -> Path:
    path.write_text("".join(f"{text}\n<|endoftext|>\n" for text in documents), encoding="utf-8")
    return path


def write_jsonl(path: Path, documents: list[str] = DOCUMENTS, field: str = "text") -> Path:
    path.write_text(
        "".join(json.dumps({"id": i, field: t}) + "\n" for i, t in enumerate(documents)), encoding="utf-8"
    )
    return path


def write_parquet(path: Path, documents: list[str] = DOCUMENTS, field: str = "text") -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": list(range(len(documents))), field: documents}), path, row_group_size=70)
    return path


def prepared(
    folder: Path | str, dataset: str, tokenizer: str = "bytes", workers: int = 1, **asked: Any
) -> Prepared:
    """A data set prepared in a data folder."""
    made, _ = Library(str(folder)).prepare(
        parse_source(dataset), tokenizer, Asked(**asked), workers=workers, tell=lambda told: None
    )
    return made


def contents(made: Prepared) -> dict[str, bytes]:
    """Every file of a data set."""
    return {path.name: path.read_bytes() for path in sorted(Path(made.path).iterdir())}
