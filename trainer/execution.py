"""How a model's layers are executed: one operation after the other, or compiled."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from schemas.sweep import Runtime
from trainer.model import GPT


class Execution(NamedTuple):
    """How a model is executed."""

    execution: Literal["eager", "compiled"]
    compile_error: str | None = None
    """Why it runs eagerly, though it was to be compiled."""


def compile_layers(model: GPT, runtime: Runtime, micro_batch: int) -> Execution:
    """Compile the model's layers where `Runtime.compile` says so, and try each shape that the arm will have.

    What is left of a step, the head and the optimizer, are a few large operations and stay as they are.
    A compiler that fails (there is none, or it cannot make one graph of them) leaves the model eager.
    """
    trial = model.trial
    wanted = model.cos.is_cuda if runtime.compile == "auto" else runtime.compile != "off"
    if not wanted:
        return Execution("eager")
    whole = micro_batch == trial.batch_size  # CUDA graphs own the gradients, and cannot add to them
    graphs = runtime.compile == "graphs" and whole
    model.compile(fullgraph=True, dynamic=False, mode="reduce-overhead" if graphs else None)
    try:
        for size in _part_sizes(trial.batch_size, micro_batch):
            _sample_loss(model, size).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for size in _part_sizes(trial.eval_tokens // trial.seq_len, micro_batch):
                _sample_loss(model, size)
    except torch._dynamo.exc.TorchDynamoException as error:
        model._compiled_call_impl = None
        return Execution("eager", str(error).strip().partition("\n")[0])
    finally:
        model.zero_grad()
    return Execution("compiled")


def _part_sizes(n: int, micro_batch: int) -> set[int]:
    """Return the sizes of the parts that `n` sequences are cut into."""
    return {min(n, micro_batch), n % micro_batch} - {0}


def _sample_loss(model: GPT, size: int) -> Tensor:
    return model.loss(torch.zeros(size, model.trial.seq_len + 1, dtype=torch.int64, device=model.cos.device))
