"""Data sets of the Hub, from one on this machine: what is read, at which commit, and what happens when it fails."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.corpora import DOCUMENTS
from tests.trainer.hub_server import SHA, Hub

ROOT = Path(__file__).parents[2]
ARTICLES = [" = One = \n", "first\n", "", " = = Part = = \n", "more\n", " = Two = \n", "second\n"]
README = """---
configs:
- config_name: default
  data_files: [{split: train, path: data/train-*.parquet}]
- config_name: small
  data_files: [{split: train, path: data/train-0.parquet}]
---
"""
# What is tried, in one process because `datasets` takes a second to load: a name and what is asked for.
SCRIPT = """
import json, re, sys
from pathlib import Path
from schemas.dataset import parse_source
from schemas.errors import UserError
from tests.trainer.corpora import contents, prepared
from trainer import hub, prepare, sources
from trainer.data_folder import Library
sources.BATCH_CHARACTERS, prepare.SAVE_EVERY_S, hub.FIRST_WAIT_S = 2000, 0.0, 0.0
hub.STARTS["me/lines"] = hub.STARTS["Salesforce/wikitext"]
root, told = Path(sys.argv[1]), {}

def attempt(name, dataset, **asked):
    try:
        made = prepared(root / name, dataset, held_out=0.3, **asked)
    except UserError as error:
        told[name] = str(error)
    else:
        told[name] = {"origin": made.manifest.origin.model_dump(), "empty": made.manifest.empty_documents,
                      "documents": made.manifest.train_documents + made.manifest.val_documents,
                      "texts": {s: bytes(made.tokens(s)[0:made.manifest.tokens(s)].clip(0, 255).astype("u1")).decode("latin1")
                                for s in ("train", "val")}}

for name, dataset, asked in json.loads(sys.argv[2]):
    attempt(name, dataset, **asked)

def interrupt(progress):
    if progress.documents > 120:
        raise KeyboardInterrupt

try:
    if "whole" in told:
        Library(str(root / "resumed")).prepare(parse_source("hf:me/books"), "bytes", prepare.Asked(held_out=0.3), workers=1, tell=interrupt)
except KeyboardInterrupt:
    attempt("resumed", "hf:me/books")
print(json.dumps(told))
"""
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("whole", "hf:me/books", {}),
    ("small", "hf:me/books:small#text", {}),
    ("pinned", "hf:me/books", {"revision": SHA}),
    ("by name", "hf:me/books", {"revision": "main"}),
    ("by name", "hf:me/books", {"revision": "main"}),  # what is there already
    ("lines", "hf:me/lines", {}),
    ("no configuration", "hf:me/books:smal", {}),
    ("no field", "hf:me/books#body", {}),
    ("no repository", "hf:me/book", {}),
    ("no revision", "hf:me/books", {"revision": "v9"}),
    ("no data", "hf:me/nothing", {}),
    ("private", "hf:me/secret", {}),
]


def write(folder: Path, documents: list[str], files: int = 3) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    size = -(-len(documents) // files)
    for number in range(files):
        part = documents[number * size : (number + 1) * size]
        table = pa.table({"id": list(range(len(part))), "text": part})
        pq.write_table(table, folder / "data" / f"train-{number}.parquet", row_group_size=40)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    root = tmp_path_factory.mktemp("hub")
    write(root / "me" / "books", DOCUMENTS)
    write(root / "me" / "lines", ARTICLES, files=1)
    (root / "me" / "nothing").mkdir()
    (root / "me" / "secret").mkdir()
    served = Hub(root)
    served.private.add("me/secret")
    served.failures = 1
    yield served
    served.close()


def run(hub_url: str, folder: Path, asked: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT)
    env = {
        "HF_ENDPOINT": hub_url,
        "HF_HOME": str(folder / "home"),
        "HF_TOKEN": "hf_secret",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, script, folder, json.dumps(asked)],
        env=os.environ | env | {"HF_HUB_DISABLE_TELEMETRY": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stdout
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def told(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(hub.url, tmp_path_factory.mktemp("prepared"), ASKED)


def test_every_row_is_read_at_one_commit(told: dict[str, Any], hub: Hub) -> None:
    whole = told["whole"]
    assert whole["origin"] == {"source": "hf:me/books", "files": [], "revision": SHA}
    assert whole["documents"] == len(DOCUMENTS)
    assert sorted("".join(whole["texts"].values()).split("\xff")[:-1]) == sorted(DOCUMENTS)
    assert told["pinned"] == told["by name"] == whole
    assert told["small"]["documents"] == 100
    assert hub.failures == 0, "it failed once, and was asked again"
    assert hub.tokens == {"Bearer hf_secret"}


def test_what_was_interrupted_goes_on_from_the_middle_of_a_file(told: dict[str, Any]) -> None:
    assert told["resumed"] == told["whole"]


def test_lines_become_articles(told: dict[str, Any]) -> None:
    texts = "".join(told["lines"]["texts"].values()).split("\xff")[:-1]
    assert sorted(texts) == ["".join(ARTICLES[:5]), "".join(ARTICLES[5:])]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no configuration",
            "Unknown configuration of me/books 'smal'. Did you mean 'small'? Known: default, small.",
        ),
        (
            "no field",
            "hf:me/books#body: there is no field 'body', only id, text. Name the field: hf:me/books#FIELD.",
        ),
        (
            "no repository",
            "hf:me/book: the Hub has no data set me/book, or it is private and HF_TOKEN is not set.",
        ),
        ("no revision", "hf:me/books: me/books has no revision v9."),
        ("no data", "hf:me/nothing: The directory at hf://datasets/me/nothing"),
        ("private", "hf:me/secret: the Hub refuses it (HTTP 401: "),
    ],
)
def test_what_is_not_there(name: str, message: str, told: dict[str, Any]) -> None:
    assert told[name].startswith(message) and "\n" not in told[name]


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    closed = Hub(tmp_path)
    closed.close()
    told = run(closed.url, tmp_path, [("away", "hf:me/books", {})])
    assert "hf:me/books: the Hub does not answer (" in told["away"]
    assert "tried 6 times. What was prepared is kept: run it again when the network is back." in told["away"]
