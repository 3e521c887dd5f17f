"""lm-eval's tasks: their official definitions, with data of the Hub or from local files."""

import functools
import json
import logging
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml

from schemas.errors import UserError
from schemas.names import UnknownName

_HOME = Path(str(lm_eval.tasks.__file__)).parent
_DEFINITIONS = {
    "arc_easy": "arc/arc_easy",
    "boolq": "super_glue/boolq/default",
    "hellaswag": "hellaswag/hellaswag",
    "lambada_openai": "lambada/lambada_openai",
    "openbookqa": "openbookqa/openbookqa",
    "piqa": "piqa/piqa",
    "social_iqa": "siqa/siqa",
    "winogrande": "winogrande/default",
}
"""Where the harness defines the paper's tasks: to find any other, it reads its 14,000 files for 9 s."""
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
_MEMBERS = 5
"""Tasks of a group that a message names."""

logging.getLogger("lm_eval").setLevel(logging.ERROR)  # its warnings are about what the definitions leave open


def check_names(names: list[str]) -> None:
    """Raise `UserError` for a name that is none of the harness's tasks, with the nearest one."""
    for name in names:
        _definition(name)


def load_task(name: str, *, n_shot: int, data: Path | None) -> Any:
    """Return the harness's task object, with `n_shot` solved examples in each prompt.

    Args:
        name: the harness's name of the task.
        n_shot: solved examples; always the same ones, whatever arm is asked.
        data: folder of local data, a file `TASK.SPLIT.jsonl` for each split that is needed, with
            the Hub's field names; None takes the data of the Hub.

    Raises:
        UserError: there is no such task, no data for it, or it allows no examples.
    """
    config = load_yaml(_definition(name))
    if n_shot and config.get("num_fewshot") == 0:
        raise UserError(f"the harness gives {name} no solved examples, and {n_shot} were asked for")
    if data is not None:
        config |= _local(name, config, n_shot, data)
    try:
        (task,) = TaskManager(include_defaults=False).load([config])["tasks"].values()
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"no data from the Hugging Face Hub ({_first_line(error)}); "
            "without a network, name a folder of files with --task-data or XSA_TASK_DATA"
        ) from error
    task.set_config("num_fewshot", n_shot)
    task.set_fewshot_seed(DEFAULT_OTHER_SEED)
    return task


def _definition(name: str) -> Path:
    if name in _DEFINITIONS:
        return _HOME / f"{_DEFINITIONS[name]}.yaml"
    index = _index()
    if name not in index:
        near = get_close_matches(name, _DEFINITIONS, n=1) or get_close_matches(name, index, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise UnknownName(f"Unknown task '{name}'.{hint} `lm-eval ls tasks` lists all {len(index):,}.")
    entry = index[name]
    if entry.kind in (Kind.GROUP, Kind.TAG):
        members = sorted(entry.tags if entry.kind is Kind.TAG else _names(entry.cfg or {}))
        more = f" and {len(members) - _MEMBERS} more" if len(members) > _MEMBERS else ""
        raise UserError(
            f"'{name}' is a group of tasks; name those you want of {', '.join(members[:_MEMBERS])}{more}."
        )
    assert entry.yaml_path is not None, f"the harness's task {name} has no file"
    return Path(entry.yaml_path)


@functools.cache
def _index() -> Mapping[str, Entry]:
    return TaskManager().task_index  # type: ignore[no-any-return] # lm-eval is not typed


def _names(group: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's members, which are names or mappings."""
    members = group.get("task") or []
    return [m if isinstance(m, str) else str(m.get("task") or m.get("group")) for m in members]


def _local(name: str, config: Mapping[str, Any], n_shot: int, data: Path) -> dict[str, Any]:
    """Return what to change in a definition so that it reads the files in `data`, and needs no others."""
    scored = config.get("test_split") or config.get("validation_split")
    examples = (
        config.get("fewshot_split")
        or config.get("training_split")
        or config.get("validation_split")
        or scored
    )
    needed = {scored, examples} if n_shot else {scored}
    files = {str(split): data / f"{name}.{split}.jsonl" for split in needed}
    if missing := [path.name for path in files.values() if not path.is_file()]:
        raise UserError(f"{data} has no {' and no '.join(sorted(missing))}")
    rows = datasets.DatasetDict({split: datasets.Dataset.from_list(_rows(f)) for split, f in files.items()})
    kept = {key: config.get(key) if config.get(key) in files else None for key in _SPLITS}
    return kept | {"custom_dataset": lambda **_: rows, "dataset_path": "json", "dataset_kwargs": None}


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):  # not `splitlines`, which cuts at U+2028 within a text too
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}:{number}: this is not JSON: {error}") from None
    if not rows:
        raise UserError(f"{path} is empty")
    return rows


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
