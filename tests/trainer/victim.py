"""One worker process for the tests that kill it: trains an arm, perhaps to die at a chosen moment.

Run by path, with the global `settings`: `arm`, `folder`, `runtime`, and `die_at`, the number of
operations on the disk after which the process kills itself (None: never).
"""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from schemas.sweep import Runtime
from schemas.trial import Arm
from trainer.train import train

settings: dict[str, Any] = globals()["settings"]
done = 0


def mortal(operation: Callable[..., Any]) -> Callable[..., Any]:
    def perform(*args: Any, **kwargs: Any) -> Any:
        global done
        if done == settings["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        return operation(*args, **kwargs)

    return perform


for owner, name in ((os, "fsync"), (Path, "rename"), (Path, "replace"), (shutil, "rmtree")):
    setattr(owner, name, mortal(getattr(owner, name)))
torch.set_num_threads(1)
train(
    Arm(**settings["arm"]),
    settings["folder"],
    Runtime(**settings["runtime"]),
    attempt=1,
    report=lambda report: None,
    should_stop=lambda: False,
)
