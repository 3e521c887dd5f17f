"""`xsa data` as a user types it, and what a sweep's commands do about data that are not prepared."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator import supervise
from orchestrator.plan import Plan
from orchestrator.supervise import Outcome
from schemas.sweep import Sweep
from tests.orchestrator.conftest import Xsa
from tests.trainer.corpora import DOCUMENTS, write_jsonl, write_parquet, write_text

SWEEP = """
base: {dataset: "DATA", tokenizer: bytes, seq_len: 16, tokens_per_step: 64, eval_tokens: 64, bias_tokens: 64, steps: 40}
grid: {xsa_lambda: [0, 1]}
"""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XSA_DATA", raising=False)
    monkeypatch.setattr("orchestrator.data.cpus", lambda: 1)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """The sweeps that would have been trained."""
    found: list[Sweep] = []

    def run(store: Any, sweep: Sweep, *_: Any, **__: Any) -> Outcome:
        found.append(sweep)
        return Outcome(Plan.make(sweep, {}), foreign=0, signal=2)

    monkeypatch.setattr(supervise, "run", run)
    return found


def test_prepare_and_look(xsa: Xsa, tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl")
    assert "holds no data sets yet; `xsa data prepare SOURCE`" in xsa("data", "ls")[1]
    command = (
        "data",
        "prepare",
        "jsonl:a.jsonl",
        "--tokenizer",
        "bytes",
        "--held-out",
        "0.2",
        "--workers",
        "1",
    )
    code, output, _ = xsa(*command)
    assert code == 0 and "sweeps name it `dataset: jsonl:a.jsonl`" in output
    assert xsa(*command)[1].startswith("Already there: ")
    (row,) = json.loads(xsa("data", "ls", "--json")[1])
    assert (row["source"], row["train_documents"] + row["held_out_documents"]) == ("jsonl:a.jsonl", 300)
    assert Path(row["folder"]).parent == tmp_path / "data", "beside where the store would be"
    assert row["data_id"][:12] in xsa("data", "ls")[1]
    assert f"{row['train_tokens']:,}" in xsa("data", "show", "jsonl:a.jsonl")[1]
    assert json.loads(xsa("data", "show", row["data_id"][:6], "--json")[1]) == row
    sample = xsa("data", "sample", "jsonl:a.jsonl", "-n", "2", "--split", "val")[1]
    assert sum(text in sample for text in DOCUMENTS) >= 1 and sample.count("-- val, token") == 2
    assert "2 shards are sound" in xsa("data", "verify")[1]
    (Path(row["folder"]) / "val_00000.bin").write_bytes(b"")
    code, output, _ = xsa("data", "verify", row["name"])
    assert code == 1 and "val_00000.bin has 0 bytes, not" in output


def test_a_damaged_manifest_is_named_and_hides_no_other(xsa: Xsa, tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt")
    write_jsonl(tmp_path / "b.jsonl")
    for source in ("text:a.txt", "jsonl:b.jsonl"):
        assert xsa("data", "prepare", source, "--tokenizer", "bytes", "--workers", "1")[0] == 0
    (path,) = (tmp_path / "data").glob("text-*/manifest.json")
    path.write_text(path.read_text()[:50])
    code, output, error = xsa("data", "ls", "--json")
    assert code == 0 and [row["source"] for row in json.loads(output)] == ["jsonl:b.jsonl"]
    assert error.startswith(f"xsa: {path} is no manifest") and error.count("\n") == 1
    assert f"{path} is no manifest" in xsa("data", "ls")[2]
    code, output, _ = xsa("data", "verify")
    assert code == 1 and "2 shards are sound" in output and f"{path} is no manifest" in output
    assert xsa("data", "verify", "jsonl:b.jsonl")[0] == 0
    code, _, error = xsa("data", "verify", path.parent.name)
    assert code == 2 and f"{path} is no manifest" in error


def test_files_that_are_gone_are_told(xsa: Xsa, tmp_path: Path, ran: list[Sweep]) -> None:
    path = write_text(tmp_path / "a.txt")
    command = ("data", "prepare", f"text:{path}", "--tokenizer", "bytes", "--workers", "1")
    assert "is gone" not in xsa(*command)[1] + xsa(*command)[1]
    path.unlink()
    told = f"text:{path} is gone; what was prepared of it is used."
    assert xsa(*command)[1].startswith(f"{told}\nAlready there: ")
    (tmp_path / "s.yaml").write_text(SWEEP.replace("DATA", f"text:{path}"))
    assert told in xsa("run", "s.yaml")[1] and len(ran) == 1
    (tmp_path / "s.yaml").write_text(SWEEP.replace("DATA", "text:a.txt"))
    code, _, error = xsa("run", "s.yaml")
    assert code == 2 and "text:a.txt: there is no such file" in error


def test_the_data_folder_is_where_somebody_says(
    xsa: Xsa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "a.txt")
    command = ("data", "prepare", "text:a.txt", "--workers", "1", "--tokenizer", "bytes", "--held-out", "0.1")
    for folder, more, env in (("one", ["--data", "one"], {}), ("two", [], {"XSA_DATA": "two"})):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert xsa(*command, *more)[0] == 0
        assert list((tmp_path / folder).glob("text-a.txt-bytes-*/manifest.json"))
        monkeypatch.delenv("XSA_DATA", raising=False)
    (tmp_path / "elsewhere").mkdir()
    assert xsa(*command, "--db", "elsewhere/results.db")[0] == 0
    assert list((tmp_path / "elsewhere" / "data").iterdir())


def test_files_are_prepared_by_run_and_named_by_plan(xsa: Xsa, tmp_path: Path, ran: list[Sweep]) -> None:
    write_text(tmp_path / "a.txt")
    (tmp_path / "s.yaml").write_text(SWEEP.replace("DATA", "text:a.txt"))
    code, output, _ = xsa("plan", "s.yaml")
    assert code == 0 and "text:a.txt (bytes) is not prepared yet; `xsa run` does it first" in output
    assert json.loads(xsa("plan", "s.yaml", "--json")[1])["unprepared"]
    assert not (tmp_path / "data").exists()
    output = xsa("run", "s.yaml")[1]
    assert output.count("Preparing text:a.txt (bytes) into") == 1
    (row,) = json.loads(xsa("data", "ls", "--json")[1])
    (sweep,) = ran
    assert sweep.runtime.data == str(tmp_path / "data"), "what workers are told"
    assert {trial.data_id for trial in sweep.trials()} == {row["data_id"]}
    assert "Preparing" not in xsa("run", "s.yaml")[1]
    planned = xsa("plan", "s.yaml", "--ids")[1]
    assert "not prepared" not in planned
    assert all(arm.id[:12] in planned for trial in sweep.trials() for arm in trial.arms)


def test_the_same_text_elsewhere_is_the_same_arms(xsa: Xsa, tmp_path: Path, ran: list[Sweep]) -> None:
    write_jsonl(tmp_path / "a.jsonl", DOCUMENTS * 2)
    write_parquet(tmp_path / "b.parquet", DOCUMENTS * 2)
    for source in ("jsonl:a.jsonl", "parquet:b.parquet"):
        assert xsa("data", "prepare", source, "--tokenizer", "bytes", "--held-out", "0.1")[0] == 0
        (tmp_path / "s.yaml").write_text(SWEEP.replace("DATA", source))
        xsa("run", "s.yaml")
    one, other = ran
    assert [trial.id for trial in one.trials()] == [trial.id for trial in other.trials()]
    both = SWEEP.replace('dataset: "DATA", ', "").replace(
        "{xsa", '{dataset: ["jsonl:a.jsonl", shakespeare], xsa'
    )
    (tmp_path / "s.yaml").write_text(both)
    xsa("run", "s.yaml")
    assert ran[-1].varied() == ["xsa_lambda", "dataset"], "the data's id follows from its name"


def test_nothing_is_downloaded_unasked(xsa: Xsa, tmp_path: Path, ran: list[Sweep]) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP.replace("DATA", "tinystories"))
    code, output, error = xsa("run", "s.yaml")
    assert (code, ran, output) == (2, [], "")
    assert "tinystories (bytes) is not prepared in" in error and "nothing is downloaded unasked" in error
    advice = shlex.split(error.rpartition(": ")[2].strip().rstrip("."))
    assert advice[:6] == ["xsa", "data", "prepare", "tinystories", "--tokenizer", "bytes"]
    assert advice[6:9] == ["--data", str(tmp_path / "data"), "--tokens"] and int(advice[9]) >= 64 / 0.0005
    code, output, _ = xsa("plan", "s.yaml")
    assert code == 0 and "tinystories (bytes) is not prepared in" in output
    assert not (tmp_path / "results.db").exists()


MISTAKES: dict[str, tuple[list[str], str]] = {
    "dataset": (
        ["plan", "typo.yaml"],
        "typo.yaml:2: base.dataset: Unknown dataset 'tinystorys'. Did you mean",
    ),
    "kind": (["data", "prepare", "txt:a.txt"], "Unknown kind of dataset 'txt'. Did you mean 'text'?"),
    "tokenizer": (["data", "prepare", "text:a.txt", "--tokenizer", "gpt"], "Did you mean 'gpt2'?"),
    "no file": (
        ["data", "prepare", "text:b.txt"],
        "text:b.txt: there is no such file (the working directory is",
    ),
    "no file in a sweep": (["plan", "gone.yaml"], "gone.yaml: text:b.txt: there is no such file"),
    "embedded": (["data", "prepare", "shakespeare"], "ships with the program"),
    "revision": (["data", "prepare", "text:a.txt", "--revision", "v1"], "files, which have no revision"),
    "bad line": (["data", "prepare", "jsonl:bad.jsonl"], "bad.jsonl, line 2: no JSON"),
    "no such data": (["data", "show", "nothing"], "Unknown data set in"),
    "data_id": (["plan", "id.yaml"], "id.yaml:1: base.data_id: it follows from the data"),
    "url": (["data", "ls", "--data", "s4://x"], "The data folder s4://x cannot be opened"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_message(case: str, xsa: Xsa, tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text"\n')
    (tmp_path / "typo.yaml").write_text(SWEEP.replace("DATA", "tinystorys"))
    (tmp_path / "gone.yaml").write_text(SWEEP.replace("DATA", "text:b.txt"))
    (tmp_path / "id.yaml").write_text("base: {data_id: abc}\n")
    arguments, message = MISTAKES[case]
    code, output, error = xsa(*arguments)
    assert code == 2 and error.startswith("xsa: ") and message in error
    assert error.count("\n") == 1 and "Traceback" not in output + error
    assert not list(tmp_path.glob("data/*/manifest.json"))
