"""Documents come out of every kind of file as they went in, from any cursor; what cannot be read is named."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.dataset import parse_source
from schemas.errors import UserError
from tests.trainer.corpora import DOCUMENTS, write_jsonl, write_parquet, write_text
from trainer.sources import BadDocument, are_gone, batches, default_share, open_source, source_files

WRITERS: dict[str, Callable[[Path], Path]] = {
    "text": write_text,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_reading_goes_on_from_every_cursor(kind: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        WRITERS[kind](tmp_path / name)
    source = open_source(parse_source(f"{kind}:{tmp_path}/*"), None)
    found = list(source.read(None))
    end = "\n" if kind == "text" else ""
    assert [text for text, _ in found] == [text + end for text in DOCUMENTS + DOCUMENTS]
    for i in (0, 68, 69, 70, 299, 300, 599):
        cursor = json.loads(json.dumps(found[i][1]))
        assert list(source.read(cursor)) == found[i + 1 :]
    shares = [source.share(cursor) for _, cursor in found]
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_text_without_marks_is_cut_at_blank_lines(tmp_path: Path) -> None:
    paragraphs = [f"{text}\n\n" for text in DOCUMENTS]
    (tmp_path / "a.txt").write_text("".join(paragraphs))
    found = [text for text, _ in open_source(parse_source(f"text:{tmp_path}/a.txt"), None).read(None)]
    assert "".join(found) == "".join(paragraphs)
    assert all(4096 <= len(text) < 4096 + 300 and text.endswith("\n\n") for text in found[:-1])


def test_a_text_without_blank_lines_is_cut_at_others(tmp_path: Path) -> None:
    lines = [f"{text}\n" for text in DOCUMENTS * 3]
    (tmp_path / "a.txt").write_text("".join(lines))
    found = [text for text, _ in open_source(parse_source(f"text:{tmp_path}/a.txt"), None).read(None)]
    assert "".join(found) == "".join(lines) and len(found) > 1
    assert all(2**16 <= len(text) < 2**16 + 300 for text in found[:-1])


def test_a_mark_may_end_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one<|endoftext|>\r\ntwo\n<|endoftext|>\nthree")
    found = [text for text, _ in open_source(parse_source(f"text:{tmp_path}/a.txt"), None).read(None)]
    assert found == ["one", "two\n", "three"]


@pytest.mark.parametrize("mention", ["GPT-2 writes <|endoftext|> between.\n", "it ends in <|endoftext|> \n"])
def test_a_mark_within_a_line_is_text(mention: str, tmp_path: Path) -> None:
    body = "".join(f"{text}\n\n" for text in DOCUMENTS)
    counts = []
    for content in (body, mention + body):
        (tmp_path / "a.txt").write_text(content)
        found = [text for text, _ in open_source(parse_source(f"text:{tmp_path}/a.txt"), None).read(None)]
        assert "".join(found) == content
        counts.append(len(found))
    assert counts[1] >= counts[0] > 10


def test_another_field(tmp_path: Path) -> None:
    for kind, write in (("jsonl", write_jsonl), ("parquet", write_parquet)):
        path = write(tmp_path / kind, DOCUMENTS, "body")
        assert next(open_source(parse_source(f"{kind}:{path}#body"), None).read(None))[0] == DOCUMENTS[0]
        with pytest.raises(
            BadDocument, match=r"no (field|column) 'text', only id, body\. Name the (field|column)"
        ):
            list(open_source(parse_source(f"{kind}:{path}"), None).read(None))


BAD: dict[str, tuple[str, bytes, str]] = {
    "not UTF-8": ("text", b"good\n<|endoftext|>\nbad \xff here\n", "byte 23: 0xff is not UTF-8"),
    "not UTF-8 in a line": ("jsonl", b'{"text": "ok"}\n{"text": "\xe9"}\n', "byte 25: 0xe9 is not UTF-8"),
    "not JSON": ("jsonl", b'{"text": "ok"}\n\n{"text": \n', "line 3: no JSON"),
    "not an object": ("jsonl", b"[1]\n", "line 1: there is no field 'text', only a list, not an object"),
    "not a text": ("jsonl", b'{"text": 3}\n', "line 1: field 'text' is a int"),
    "half a pair": ("jsonl", b'{"text": "\\ud800"}\n', "line 1: field 'text' holds half a surrogate pair"),
    "empty": ("jsonl", b'{"text": "ok"}\n{"text": ""}\n', "line 2: the document is empty.*--empty skip"),
    "empty text": ("text", b"a<|endoftext|>\n<|endoftext|>\n", "up to byte 29: the document is empty"),
    "not Parquet": ("parquet", b"PAR1 nonsense", "it is no whole Parquet file"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_named(case: str, tmp_path: Path) -> None:
    kind, content, message = BAD[case]
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(BadDocument, match=message) as caught:
        list(batches(open_source(parse_source(f"{kind}:{path}"), None), None, empty="refuse"))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_parquet_cut_short_or_with_holes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    with pytest.raises(BadDocument, match=r"a.parquet: it is no whole Parquet file"):
        list(open_source(parse_source(f"parquet:{path}"), None).read(None))
    write_parquet(path, [*DOCUMENTS[:80], None])  # type: ignore[list-item]
    with pytest.raises(BadDocument, match="row 81: it holds nothing, not a text"):
        list(open_source(parse_source(f"parquet:{path}"), None).read(None))


def test_empty_documents_may_be_skipped(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", ["a", "", "b", ""])
    (batch,) = batches(open_source(parse_source(f"jsonl:{path}"), None), None, empty="skip")
    assert (batch.documents, batch.empty) == (["a", "b"], 2)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        open_source(parse_source(f"text:{tmp_path}/none.txt"), None)
    with pytest.raises(UserError, match=r"it is a folder: write .*/\*"):
        open_source(parse_source(f"text:{tmp_path}"), None)
    with pytest.raises(UserError, match="ships with the program"):
        open_source(parse_source("shakespeare"), None)


def test_more_is_held_out_of_files() -> None:
    sources = ["text:a.txt", "jsonl:b", "parquet:c", "hf:me/books", "fineweb"]
    assert [default_share(parse_source(source)) for source in sources] == [0.05] * 3 + [0.0005] * 2


def test_a_file_is_its_path_its_size_and_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parse_source("text:a.txt")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
        os.utime(tmp_path / name / "a.txt", ns=(10**18, 10**18))
    found = []
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path / name)
        found.append(source_files(source))
    assert [file.path for (file,) in found] == [f"{tmp_path}/one/a.txt", f"{tmp_path}/two/a.txt"]
    monkeypatch.chdir(tmp_path)
    assert source_files(parse_source("text:one/a.txt")) == found[0]
    (tmp_path / "two" / "a.txt").write_text("own")
    os.utime(tmp_path / "two" / "a.txt", ns=(10**18, 10**18))
    assert source_files(parse_source("text:two/*")) != found[1], "its time was set back"
    assert are_gone(source) and not are_gone(parse_source("hf:me/books"))
