"""Every form in which a text or a tokenizer may be named, and the nearest name for what is none."""

import pytest

from schemas.dataset import EMBEDDED, PRESETS, VOCABULARIES, check_tokenizer, parse_source
from schemas.errors import UserError
from schemas.names import UnknownName

FORMS = {
    "shakespeare": ("embedded", "shakespeare", None, "text"),
    "text:a/b.txt": ("text", "a/b.txt", None, "text"),
    "text:c#1.txt": ("text", "c#1.txt", None, "text"),
    "jsonl:x.jsonl#body": ("jsonl", "x.jsonl", None, "body"),
    "parquet:d/*.parquet": ("parquet", "d/*.parquet", None, "text"),
    "hf:me/books": ("hf", "me/books", None, "text"),
    "hf:me/books:en#page": ("hf", "me/books", "en", "page"),
    "fineweb": ("hf", "HuggingFaceFW/fineweb", "sample-100BT", "text"),
}


@pytest.mark.parametrize("text", FORMS)
def test_forms(text: str) -> None:
    source = parse_source(text)
    assert (source.kind, source.where, source.config, source.field) == FORMS[text]
    assert parse_source(source.label) == source, "one way to write it"
    assert source.label == PRESETS.get(text, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shakespear", "Unknown dataset 'shakespear'. Did you mean 'shakespeare'"),
        ("finweb", "Did you mean 'fineweb'"),
        ("my.txt", "Known: .*text:PATH"),
        ("parket:a", "Unknown kind of dataset 'parket'. Did you mean 'parquet'"),
        ("text:", "names no file: write text:PATH"),
        ("hf:gpt2", "names no repository: write hf:OWNER/NAME"),
        ("hf:a/b/c", "names no repository"),
    ],
)
def test_what_names_no_text(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_source(text)


def test_no_name_means_two_things() -> None:
    assert not set(EMBEDDED) & PRESETS.keys()


def test_what_names_no_tokenizer() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'cl100k_base'"):
        check_tokenizer("cl100kbase")
    assert all(check_tokenizer(name) == name for name in VOCABULARIES)
