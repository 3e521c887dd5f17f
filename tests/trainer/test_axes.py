"""Every axis that decides an arm's identity is read somewhere in the trainer."""

import ast
from pathlib import Path

import pytest

import schemas.trial
import trainer
from schemas.trial import AXES


def attributes(tree: ast.AST) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def read_in_trainer() -> set[str]:
    """Attribute names in the trainer's code, and those that `Trial`'s methods read for it."""
    assert trainer.__file__ is not None and schemas.trial.__file__ is not None
    found: set[str] = set()
    for path in Path(trainer.__file__).parent.glob("*.py"):
        found |= attributes(ast.parse(path.read_text(encoding="utf-8")))
    classes = ast.parse(Path(schemas.trial.__file__).read_text(encoding="utf-8")).body
    methods = {
        method.name: attributes(method)
        for definition in classes
        if isinstance(definition, ast.ClassDef)
        for method in definition.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    }
    for name in ("xsa_layer_set", "batch_size"):
        assert name in found
        found |= methods[name]
    return found


@pytest.mark.parametrize("name", [name for name, axis in AXES.items() if axis.identity])
def test_an_axis_is_read(name: str) -> None:
    assert name in read_in_trainer(), f"{name} changes an arm's identity and nothing else"
