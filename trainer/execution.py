"""How a model's layers are executed: one operation after the other, or compiled."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config as functorch

from schemas.sweep import Runtime
from trainer.model import GPT

_RECORDING = 3
"""Calls until a CUDA graph is replayed: one that warms up, one that records, and a replay."""


class Execution(NamedTuple):
    """How a model is executed."""

    execution: Literal["eager", "compiled"]
    compile_error: str | None = None
    """Why it runs eagerly though it was to be compiled, or without the CUDA graphs that it was to have."""


def compile_layers(model: GPT, runtime: Runtime, micro_batch: int) -> Execution:
    """Compile the model's layers where `Runtime.compile` says so, and try each shape that the arm will have.

    What is left of a step, the head and the optimizer, are a few large operations and stay as they are.
    A compiler that fails (there is none, or it cannot make one graph of them) leaves the model eager.

    As one graph, though alike layers are traced one by one: a graph for each kind of layer is compiled sooner,
    but then every layer of every step costs the host a call. What was traced is kept on the disk, with the code
    of `torch.autograd.Function`s in its key, so that another process does not do it again.
    """
    trial = model.trial
    wanted = model.cos.is_cuda if runtime.compile == "auto" else runtime.compile != "off"
    if not wanted:
        return Execution("eager")
    whole = micro_batch == trial.batch_size  # CUDA graphs own the gradients, and cannot add to them
    graphs = runtime.compile == "graphs" and whole
    skipped = counters["inductor"]["cudagraph_skips"]
    model.compile(fullgraph=True, dynamic=False, mode="reduce-overhead" if graphs else None)
    try:
        with functorch.patch(autograd_cache_allow_custom_autograd_functions=True):
            for _ in range(_RECORDING if graphs else 1):
                _try_shapes(model, micro_batch)
    except torch._dynamo.exc.TorchDynamoException as error:
        model._compiled_call_impl = None
        return Execution("eager", str(error).strip().partition("\n")[0])
    skipped = counters["inductor"]["cudagraph_skips"] - skipped
    if runtime.compile == "graphs" and not whole:
        why = f"a step of {trial.batch_size} sequences is cut into parts of {micro_batch}"
    elif graphs and skipped:
        why = f"Inductor skipped {skipped} of them (TORCH_LOGS=cudagraphs tells why)"
    else:
        return Execution("compiled")
    return Execution("compiled", f"no CUDA graphs: {why}")


def _try_shapes(model: GPT, micro_batch: int) -> None:
    """Run the model on each shape that training and evaluating it will have."""
    trial = model.trial
    try:
        for size in _part_sizes(trial.batch_size, micro_batch):
            _sample_loss(model, size).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for size in _part_sizes(trial.eval_tokens // trial.seq_len, micro_batch):
                _sample_loss(model, size)
    finally:
        model.zero_grad()


def _part_sizes(n: int, micro_batch: int) -> set[int]:
    """Return the sizes of the parts that `n` sequences are cut into."""
    return {min(n, micro_batch), n % micro_batch} - {0}


def _sample_loss(model: GPT, size: int) -> Tensor:
    return model.loss(torch.zeros(size, model.trial.seq_len + 1, dtype=torch.int64, device=model.cos.device))
