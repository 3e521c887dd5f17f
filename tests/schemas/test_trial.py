import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.axis import Axis, axis
from schemas.errors import UserError
from schemas.names import UnknownName
from schemas.sizes import SIZES, size_name
from schemas.trial import AXES, SEMANTICS_VERSION, Arm, Trial

finite = st.floats(allow_nan=False, allow_infinity=False)


def test_identity_of_the_default_arms_is_frozen() -> None:
    # A change here means that every earlier result no longer counts: bump SEMANTICS_VERSION on purpose.
    assert SEMANTICS_VERSION == 1
    assert Trial(xsa_lambda=1.0).sa.id.startswith("3728b0dd40ea")
    assert Trial(xsa_lambda=1.0).xsa.id.startswith("0bdc3b75c612")


def test_identity_is_sha256_of_canonical_json() -> None:
    arm = Trial().xsa
    assert arm.id == hashlib.sha256(arm.canonical().encode()).hexdigest()
    assert json.loads(arm.canonical())["xsa_lambda"] == 1.0


def test_lambda_zero_is_the_sa_arm() -> None:
    trial = Trial(xsa_lambda=0, xsa_layers="last:1")
    assert trial.xsa == trial.sa == Trial(xsa_lambda=0.7).sa
    assert trial.arms == (trial.sa,)
    assert trial.sa.name == "sa"


def test_baseline_ignores_every_xsa_setting() -> None:
    assert Trial(xsa_lambda=0.5, xsa_layers="0").sa.id == Trial(xsa_lambda=2.0).sa.id


@given(finite)
def test_equal_numbers_are_one_identity(value: float) -> None:
    assert Trial(xsa_lambda=value).id == Trial(xsa_lambda=float(repr(value))).id
    assert Trial(xsa_lambda=0.0).id == Trial(xsa_lambda=-0.0).id


@given(finite, finite)
def test_different_lambdas_are_different_arms(a: float, b: float) -> None:
    assert (Trial(xsa_lambda=a).xsa.id == Trial(xsa_lambda=b).xsa.id) == (a == b)


@pytest.mark.parametrize("name", [name for name, a in AXES.items() if a.identity])
def test_every_axis_that_bears_identity_changes_it(name: str) -> None:
    other = {
        "xsa_layers": "0", "sink_kind": "kv", "n_kv_head": 1, "dataset": "fineweb", "data_id": "0" * 64, "sampling": "random_crops", "tokenizer": "bytes",
        "optimizer": "muon", "dtype": "bfloat16", "qk_norm": True, "seq_len": 1024, "d_head": 32, "beta2": 0.9,
        "min_lr_ratio": 0.2, "warmup_steps": 3,
    }  # fmt: skip
    base = {"n_sinks": 1} if name == "sink_kind" else {}
    value = other.get(name, 2 * AXES[name].default if AXES[name].default else 1)
    if name in ("beta1",):
        value = 0.5
    changed = Arm(**base | {name: value})
    assert changed.id != Arm(**base).id


def test_settings_without_effect_do_not_change_identity() -> None:
    assert Arm(sink_kind="kv").id == Arm().id
    assert Arm(xsa_layers="0,1").id == Arm(xsa_layers="last:2").id == Arm().id
    assert Arm(xsa_layers="last:1").id == Arm(xsa_layers="1").id != Arm().id


def test_named_size_is_its_numbers() -> None:
    numbers = Trial(n_layer=2, d_model=128, n_head=2, d_head=64)
    assert numbers.id == Trial(model_size="toy").id
    assert numbers.model_size == "toy"
    deeper = Trial(model_size="toy", n_layer=3)
    assert (deeper.d_model, deeper.model_size) == (128, "3L-128d-2x64")
    assert Trial(**deeper.model_dump()) == deeper


def test_unknown_size_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="Did you mean '350M'"):
        Trial(model_size="350m")
    with pytest.raises(ValidationError, match="Unknown model size 'huge'"):
        Trial(model_size="huge", n_layer=2, d_model=128, n_head=2, d_head=64)


def test_paper_sizes_have_the_paper_s_parameter_counts() -> None:
    counts = {name: round(SIZES[name].non_embedding / 1e9, 3) for name in ("0.7B", "1.3B", "2.7B")}
    assert counts == {"0.7B": 0.679, "1.3B": 1.409, "2.7B": 2.684}
    assert all(size_name(*size[:4]) == name for name, size in SIZES.items())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seq_len": 48, "tokens_per_step": 1024}, "1,024 is not a multiple of seq_len 48; 1,008 is"),
        ({"steps": 10, "warmup_steps": 10}, "warmup_steps 10 is not below steps 10"),
        ({"d_head": 63}, "d_head 63 is odd"),
        ({"n_kv_head": 3}, "n_kv_head 3 does not divide n_head 2"),
        ({"xsa_layers": "last:3"}, "names no layers of a 2-layer model"),
        ({"xsa_layers": "2"}, "names no layers"),
        ({"xsa_layers": "first"}, "names no layers"),
        ({"eval_tokens": 8}, "eval_tokens 8 is not a multiple of seq_len 2,048"),
    ],
)
def test_values_that_do_not_fit_together_say_so(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Trial(**values)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seq_len", 4, "4 is below 8, the least sequence length."),
        ("lr", 0, "0 cannot be the learning rate: it must be above 0."),
        ("beta1", 1.0, "must be below 1"),
        ("min_lr_ratio", 2, "2 is above 1, the greatest final lr / peak lr."),
        ("seq_len", "64", "'64' is text; sequence length must be a whole number."),
        ("seq_len", 64.5, "64.5 is float; sequence length must be a whole number."),
        ("seed", True, "True is true/false"),
        ("lr", float("inf"), "inf is not a finite number"),
        ("dtype", "fp16", "'fp16' is no precision. Known: float32, bfloat16."),
        ("xsa_lambda", None, "None is nothing; λ must be a number."),
    ],
)
def test_a_bad_value_says_what_is_wrong(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        AXES[name].check(value)
    assert message in str(caught.value)


def test_values_are_coerced_to_the_axis_type() -> None:
    assert AXES["seq_len"].check(1e3) == 1000
    assert repr(AXES["lr"].check(1)) == "1.0"
    assert AXES["steps"].parse("1e3") == 1000
    assert AXES["dtype"].parse("bfloat16") == "bfloat16"


def test_axis_carries_label_unit_scale_and_meaning() -> None:
    a = AXES["seq_len"]
    assert (a.title, a.log, a.limits) == ("sequence length (tokens)", True, {"ge": 8})
    assert "Tokens in one training sequence" in a.description
    assert all(a.description and a.label for a in AXES.values())


def test_a_later_axis_at_its_former_value_keeps_old_identities(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Arm().id
    grown = Axis.from_field("dropout", _field(axis(0.1, "dropout", ge=0, before=0.0), float))
    monkeypatch.setitem(AXES, "dropout", grown)
    old, new = Arm(), Arm()
    object.__setattr__(old, "dropout", 0.0)
    object.__setattr__(new, "dropout", 0.1)
    assert old.id == before
    assert new.id != before


def _field(field: object, annotation: type) -> object:
    field.annotation = annotation  # type: ignore[attr-defined]
    return field


def test_unknown_axis_is_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Trial(seqlen=8)
    assert issubclass(UnknownName, ValueError)


def test_prepared_data_are_known_by_their_hash_alone() -> None:
    one, other = (Trial(dataset=name, data_id="a" * 64) for name in ("text:here.txt", "jsonl:there.jsonl"))
    assert one.id == other.id != Trial(dataset="text:here.txt", data_id="b" * 64).id
    assert Trial(dataset="text:here.txt").id != Trial(dataset="jsonl:there.jsonl").id
    assert Trial(data_id="", sampling="epoch").id == Trial().id, "what arms had before there were these axes"
