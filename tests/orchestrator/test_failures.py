"""What an error means for the trial that it ended."""

import pytest

from orchestrator.failures import TuneEnded, explain, killed_for_memory
from orchestrator.worker import TrialTimeout
from tests.orchestrator.conftest import ActorDiedError, out_of_memory


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (None, "interrupted"),
        (ValueError("bad"), "user_error"),
        (MemoryError("no more"), "host_oom"),
        (type("OutOfMemoryError", (Exception,), {})("node ran out of memory"), "host_oom"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate"), "cuda_oom"),
        (TrialTimeout("it took more than 2 h"), "timeout"),
        (ActorDiedError("gone"), "node_lost"),
        (type("RayActorError", (Exception,), {"preempted": True})("gone"), "preempted"),
    ],
)
def test_causes(error: Exception | None, cause: str) -> None:
    assert explain(error).cause == cause
    if error is not None:
        wrapped = RuntimeError("task failed")
        wrapped.cause = error  # type: ignore[attr-defined] # as Ray wraps what a worker raised
        assert explain(wrapped).cause == cause


def test_what_ray_writes_on_memory_becomes_a_line() -> None:
    failure = explain(out_of_memory(3, 41))
    assert failure.message.startswith("Ray's memory monitor killed it: its node had 2.81GB of 23.54GB in use")
    assert "\n" not in failure.message
    assert killed_for_memory(out_of_memory(3, 41)) == {3, 41}
    assert killed_for_memory(ValueError("pid=3")) == set()
    as_text = explain(RuntimeError(f"ray.exceptions.OutOfMemoryError: {out_of_memory(3)}"))
    assert (as_text.cause, as_text.message) == ("host_oom", explain(out_of_memory(3)).message)


def test_failures_are_alike_whatever_their_numbers() -> None:
    for text in ("shape [{}, 8] at 0x7f{}a", "File exists: '/runs/arms/{}fedcbadefab{}'"):
        alike = [explain(ValueError(text.format(i, i))).signature for i in (1, 20)]
        assert alike[0] == alike[1]
    assert explain(ValueError("shape")).signature != explain(MemoryError("shape")).signature


def test_who_ended_with_tune_is_not_to_blame() -> None:
    failure = explain(TuneEnded("another trial ran out of memory"))
    assert failure.blameless
    assert not failure.is_fault
