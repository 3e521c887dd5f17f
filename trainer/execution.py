"""How a model's layers are executed: one operation after the other, or compiled."""

from typing import Literal, NamedTuple

import torch

from schemas.sweep import Runtime
from trainer.model import GPT


class Execution(NamedTuple):
    """How a model is executed."""

    execution: Literal["eager", "compiled"]
    compile_error: str | None = None
    """Why it runs eagerly, though it was to be compiled."""


def compile_layers(model: GPT, runtime: Runtime, micro_batch: int) -> Execution:
    """Compile the model's layers where `Runtime.compile` says so, and try it on `micro_batch` sequences.

    What is left of a step, the head and the optimizer, are a few large operations and stay as they are.
    A compiler that fails (there is none, or it does not know an operation) leaves the model eager.
    """
    wanted = model.cos.is_cuda if runtime.compile == "auto" else runtime.compile != "off"
    if not wanted:
        return Execution("eager")
    torch.compiler.reset()  # the arms that a process trained before count towards the limit of recompilations
    whole = micro_batch == model.trial.batch_size  # CUDA graphs own the gradients, and cannot add to them
    graphs = runtime.compile == "graphs" and whole
    model.compile(dynamic=False, mode="reduce-overhead" if graphs else None)
    tokens = torch.zeros(micro_batch, model.trial.seq_len + 1, dtype=torch.int64, device=model.cos.device)
    try:
        model.loss(tokens).backward()  # type: ignore[no-untyped-call]
    except torch._dynamo.exc.TorchDynamoException as error:
        model._compiled_call_impl = None
        return Execution("eager", str(error).strip().partition("\n")[0])
    finally:
        model.zero_grad()
    return Execution("compiled")
