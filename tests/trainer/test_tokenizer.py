"""Other encodings of tiktoken: their sizes are known without their files, and a file that is missing is told."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
from tiktoken_ext import openai_public

from schemas.dataset import VOCABULARIES
from schemas.errors import UserError
from tests.trainer.corpora import DOCUMENTS, prepared, write_text
from trainer.tokenizer import gpt2_ranks, load_tokenizer, padded_vocab, token_dtype


def test_sizes_are_tiktoken_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest special token ends an encoding; its file is not needed to know that."""
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    monkeypatch.setattr(openai_public, "data_gym_to_mergeable_bpe_ranks", lambda *_, **__: {})
    sizes = {}
    for name in tiktoken.list_encoding_names():
        made = openai_public.ENCODING_CONSTRUCTORS[name]()
        sizes[name] = made.get("explicit_n_vocab", max(made["special_tokens"].values()) + 1)
    assert {name: VOCABULARIES[name] for name in sizes} == sizes
    assert VOCABULARIES.keys() - sizes.keys() == {"bytes"}
    assert padded_vocab("cl100k_base") == 100_288
    assert token_dtype("gpt2") == np.uint16 and token_dtype("cl100k_base") == np.uint32


def test_a_file_that_is_not_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))

    def unreachable(*_: Any) -> bytes:
        raise ConnectionError("no network")

    monkeypatch.setattr("tiktoken.load.read_file", unreachable)
    with pytest.raises(UserError, match=f"tokenizer cl100k_base: its file is not in {tmp_path}.*or use gpt2"):
        load_tokenizer("cl100k_base")


def test_a_large_vocabulary_is_kept_in_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = tiktoken.Encoding(
        "cl100k_base",
        pat_str=r"\S+|\s+",
        mergeable_ranks={piece: rank + 70_000 for piece, rank in gpt2_ranks().items() if rank < 30_000},
        special_tokens={"<|endoftext|>": 100_257},
    )
    monkeypatch.setattr(tiktoken, "get_encoding", {"cl100k_base": large}.__getitem__)
    load_tokenizer.cache_clear()
    made = prepared(tmp_path, f"text:{write_text(tmp_path / 'a.txt')}", "cl100k_base", held_out=0.3)
    tokens = made.tokens("val")[0 : made.manifest.tokens("val")]
    load_tokenizer.cache_clear()
    assert made.manifest.dtype == "uint32" and tokens.max() == 100_257 and tokens.min() >= 70_000
    texts = large.decode(tokens.tolist()).split("<|endoftext|>")[:-1]
    assert texts and {text.removesuffix("\n") for text in texts} <= set(DOCUMENTS)
