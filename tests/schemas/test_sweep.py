import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UserError
from schemas.loader import load_document, parse_scalar
from schemas.sweep import Sweep

Write = Callable[..., Path]
SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").rglob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_sweep_in_the_repository_expands(path: Path) -> None:
    assert Sweep.load(path).trials()


def test_quickstart_trains_six_arms() -> None:
    trials = Sweep.load(SWEEPS[0].parent / "quickstart.yaml").trials()
    assert len(trials) == 6
    assert len({arm.id for trial in trials for arm in trial.arms}) == 6


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4), ("1E4", 1e4), ("3.0e-4", 3e-4), ("1.", 1.0), (".5", 0.5), ("-2", -2), ("017", 17), ("0o17", 15),
        ("0x1f", 31), ("1_000", "1_000"), ("on", "on"), ("no", "no"), ("true", True), ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"), ("null", None), ("~", None), ("", None), (".inf", float("inf")),
        ("-.inf", -float("inf")), ("last:4", "last:4"), ("'1e-4'", "1e-4"),
    ],
)  # fmt: skip
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


@given(st.floats(allow_nan=False))
def test_every_float_survives_yaml(value: float) -> None:
    text = repr(value).replace("inf", ".inf")
    assert parse_scalar(text) == value


def test_grid_list_and_seeds_multiply(sweep_file: Write) -> None:
    sweep = Sweep.load(
        sweep_file(
            "base: {seq_len: 64, tokens_per_step: 1024, eval_tokens: 64}\n"
            "list:\n- {model_size: toy, lr: 1e-3}\n- {model_size: 10M, lr: 5e-4}\n"
            "grid: {xsa_lambda: [0, 1]}\nseeds: [0, 1, 2]\n"
        )
    )
    trials = sweep.trials()
    assert len(trials) == 2 * 2 * 3
    assert sweep.varied()[:1] == ["xsa_lambda"]
    assert {t.lr for t in trials if t.model_size == "10M"} == {5e-4}
    assert sweep.name == "sweep"
    assert "xsa_lambda: [0, 1]" in sweep.source


def test_order_of_keys_and_values_does_not_change_the_trials(sweep_file: Write) -> None:
    one = Sweep.load(sweep_file("grid: {xsa_lambda: [0, 1], lr: [1e-3, 2e-3]}\nseeds: [0, 1]\n", "a.yaml"))
    two = Sweep.load(
        sweep_file("seeds: [1, 0]\ngrid: {lr: [0.002, 1.0e-3], xsa_lambda: [1.0, 0.0]}\n", "b.yaml")
    )
    assert {t.id for t in one.trials()} == {t.id for t in two.trials()}


BAD = {
    "list against grid": (
        "list: [{lr: 1e-3}]\ngrid: {lr: [5e-3]}\n",
        ":1: list[0].lr: lr is also in the grid; keep one of the two.",
    ),
    "list against seeds": (
        "list: [{seed: 7}]\nseeds: [0]\n",
        "list[0].seed: seed is also in seeds; keep one of the two.",
    ),
    "a field that is no key": ("source: foo\n", ":1: source: Unknown key 'source'."),
    "key that is no name": ("? [a]\n: 1\n", ":1: a key must be a name."),
    "endless": ("base: &a {lr: *a}\n", "nested without an end"),
    "explicit tag": ("base: {lr: !!int abc}\n", ":1: 'abc' is no int."),
    "explicit bool": ("base: {qk_norm: !!bool maybe}\n", ":1: 'maybe' is no bool."),
    "control character": ("base: {lr: \x07}\n", "this is not YAML"),
    "more than 63 bits": (
        "seeds: [9223372036854775808]\n",
        "seeds[0]: 9223372036854775808 is more than a database can hold",
    ),
    "more than 63 bits in a grid": ("grid: {steps: [1e30]}\n", "1e+30 is more than a database can hold"),
    "infinite runtime": (
        "runtime: {cpus_per_trial: .inf}\n",
        "runtime.cpus_per_trial: inf: input should be a finite number.",
    ),
    "too wide": (
        "base: {d_model: 100000000000}\n",
        "100000000000 is above 1000000, the greatest model width.",
    ),
    "unknown axis": (
        "base: {lr: 1e-3}\ngrid:\n  seqlen: [64]\n",
        ":3: grid.seqlen: Unknown axis 'seqlen'. Did you mean 'seq_len'?",
    ),
    "unknown key": ("bases: {}\n", ":1: bases: Unknown key 'bases'. Did you mean 'base'?"),
    "unknown runtime": (
        "runtime:\n  eval_evry: 5\n",
        ":2: runtime.eval_evry: Unknown runtime setting 'eval_evry'. Did you mean 'eval_every'?",
    ),
    "negative steps": ("base:\n  steps: -5\n", ":2: base.steps: -5 is below 1, the least steps."),
    "bad grid value": (
        "grid:\n  seq_len:\n  - 64\n  - 4\n",
        ":4: grid.seq_len[1]: 4 is below 8, the least sequence length.",
    ),
    "text for a number": ("base: {lr: '1e-3'}\n", "base.lr: '1e-3' is text; learning rate must be a number."),
    "grid over nothing": ("grid:\n  lr: []\n", ":2: grid.lr: lr has no values"),
    "empty grid": ("grid: {}\n", ":1: grid: grid is empty"),
    "null grid": ("grid:\n", ":1: grid: grid is empty"),
    "no seeds": ("seeds: []\n", "seeds: seeds is empty"),
    "listed twice": ("grid: {lr: [1e-3, 0.001]}\n", "grid.lr[1]: 0.001 is listed twice."),
    "duplicate key": (
        "base: {lr: 1e-3}\nbase: {}\n",
        ":2: key 'base' is given twice; the first is on line 1.",
    ),
    "duplicate axis": ("base:\n  lr: 1\n  lr: 2\n", ":3: key 'lr' is given twice"),
    "seed twice": ("grid: {seed: [1]}\nseeds: [0]\n", "the seed is also an axis of the grid"),
    "not a mapping": ("- 1\n- 2\n", ":1: a mapping of keys is needed here, not list."),
    "not yaml": ("base: {lr: 1\n", "this is not YAML"),
    "tabs": ("base:\n\tlr: 1\n", ":2: this is not YAML"),
    "empty": ("", "is empty"),
    "odd name": ("name: ../evil\n", "'../evil' cannot name a sweep"),
    "scalar grid": ("grid: {lr: 1e-3}\n", ":1: grid.lr: 0.001: input should be a valid list."),
    "not together": (
        "base: {tokens_per_step: 1000}\n",
        "trial with base: tokens_per_step 1,000 is not a multiple",
    ),
    "bad size": ("grid: {model_size: [tyo]}\n", "Unknown model size 'tyo'. Did you mean 'toy'?"),
    "bad runtime": (
        "runtime: {eval_every: 0}\n",
        "runtime.eval_every: 0: input should be greater than or equal to 1.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_named_with_file_and_line(case: str, sweep_file: Write) -> None:
    text, message = BAD[case]
    path = sweep_file(text)
    with pytest.raises(UserError) as caught:
        Sweep.load(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "a.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path, message in (
        (tmp_path, "is a directory"),
        (tmp_path / "no.yaml", "no such file"),
        (binary, "UTF-8"),
    ):
        with pytest.raises(UserError, match=message):
            Sweep.load(path)


def test_lines_are_known_for_nested_values(sweep_file: Write) -> None:
    document = load_document(sweep_file("base:\n  lr: 1\nlist:\n- {lr: 2}\n- {lr: 3}\n"))
    assert document.lines["base", "lr"] == 2
    assert document.lines["list", 1, "lr"] == 5


def test_merge_keys_and_anchors_work(sweep_file: Write) -> None:
    text = "list:\n- &a {lr: 1e-3, seed: 1}\n- {<<: *a, lr: 2e-3}\n"
    assert [(t.lr, t.seed) for t in Sweep.load(sweep_file(text)).trials()] == [(1e-3, 1), (2e-3, 1)]


def test_schemas_load_without_the_heavy_packages() -> None:
    code = "import schemas.sweep, schemas.report, sys; print([m for m in ('torch', 'ray', 'sqlalchemy', 'pandas', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize("gpus", ["1.5", "2.0001"])
def test_gpus_are_a_share_of_one_or_whole(sweep_file: Write, gpus: str) -> None:
    with pytest.raises(
        UserError, match=rf":1: runtime\.gpus_per_trial: {gpus} is neither a share of one GPU"
    ):
        Sweep.load(sweep_file(f"runtime: {{gpus_per_trial: {gpus}}}\n"))
    for good in (0, 0.3, 1, 1.0, 2.0, 8):
        assert Sweep.load(sweep_file(f"runtime: {{gpus_per_trial: {good}}}\n")).runtime.gpus_per_trial == good


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hush@bucket/x",
        "s3://key:12/hush@bucket/x",
        "sftp://me:9hush@host/x",
        "https://hush@host/x",
        "az://c/x?sig=hush",
        "https://host/x?X-Amz-Signature=hush",
        "s3://bucket/x?a=1&AWSAccessKeyId=hush",
    ],
)
def test_a_key_or_password_in_a_url_is_refused_and_not_repeated(sweep_file: Write, url: str) -> None:
    with pytest.raises(UserError, match=r":1: runtime\.data: it holds a key or password") as caught:
        Sweep.load(sweep_file(f"runtime: {{data: '{url}'}}\n"))
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "place",
    [
        "s3://bucket/x",
        "abfs://box@account.host/x",
        "sftp://me@host/x",
        "hdfs://nn:9000/x@v2",
        "http://[::1]:8080/x@y",
        "https://host:8080/a?monkey=1",
        "/a:b@c",
        "data",
    ],
)
def test_an_address_without_a_password_is_none(sweep_file: Write, place: str) -> None:
    assert Sweep.load(sweep_file(f"runtime: {{data: '{place}'}}\n")).runtime.data == place


@pytest.mark.parametrize(
    "resources", ["{CPU: 64}", "{GPU: 1}", "{memory: 5}", "{licence: 0}", "{x: -1}", "{'': 1}"]
)
def test_custom_resources_are_custom_and_positive(sweep_file: Callable[..., Path], resources: str) -> None:
    path = sweep_file(f"base: {{}}\nruntime:\n  custom_resources: {resources}\n")
    with pytest.raises(UserError, match=r"sweep\.yaml:3: runtime\.custom_resources"):
        Sweep.load(path)
