"""YAML with line numbers: YAML 1.2 scalars (`1e-4` is a number, `on` a text), no duplicate keys."""

import re
from pathlib import Path
from typing import Any

import yaml

from schemas.errors import UserError

Where = tuple[str | int, ...]
"""A place in a document: keys and indices from the root."""


class _Loader(yaml.SafeLoader):
    """PyYAML reads YAML 1.1, where `1e-4` is text, `on` is true and `017` is fifteen."""


_Loader.yaml_implicit_resolvers = {}
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _tag, _pattern, _first_characters in (
    ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    ("float", _FLOAT, [*"-+.0123456789"]),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first_characters
    )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(node.value).lower()
    return float(text.replace(".", "") if text.endswith((".inf", ".nan")) else text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


class Document:
    """A parsed YAML text: its value, and the line of each key and item."""

    def __init__(self, name: str, text: str, value: Any, lines: dict[Where, int]) -> None:
        self.name = name
        """What messages call it: the file's path."""
        self.text = text
        self.value = value
        self.lines = lines

    def error(self, where: Where, message: str) -> UserError:
        """Return the error that points at `where`, by file, line and dotted key."""
        known = where
        while known and known not in self.lines:
            known = known[:-1]
        line = f":{self.lines[known]}" if known in self.lines else ""
        dotted = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in where).lstrip(".")
        return UserError(f"{self.name}{line}: {f'{dotted}: ' if dotted else ''}{message}")


def load_document(path: Path) -> Document:
    """Read a YAML mapping from `path`. Raises `UserError` for whatever is wrong with it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file.") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory; a YAML file is needed.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file in UTF-8, so it cannot be YAML.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    return parse_document(text, str(path))


def parse_document(text: str, name: str) -> Document:
    """Read a YAML mapping from a text that messages call `name`. Raises `UserError`."""
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise UserError(f"{name} is empty; a sweep needs at least a `base` or a `grid`.")
        document = Document(name, text, None, {(): root.start_mark.line + 1})
        document.value = _build(loader, root, (), document)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = (getattr(error, "problem", None) or str(error)).splitlines()[0]
        raise UserError(f"{name}{line}: this is not YAML: {problem}.") from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(document.value, dict):
        raise UserError(f"{name}:1: a mapping of keys is needed here, not {type(document.value).__name__}.")
    return document


def _build(loader: _Loader, node: yaml.Node, where: Where, document: Document) -> Any:
    line = node.start_mark.line + 1
    if len(where) > 20:  # nothing here is so deep: an alias contains itself
        raise UserError(f"{document.name}:{line}: the values are nested without an end.")
    document.lines.setdefault(where, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*where, i), document) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return loader.construct_object(node)
        except (ValueError, KeyError):
            raise UserError(
                f"{document.name}:{line}: '{node.value}' is no {node.tag.rpartition(':')[2]}."
            ) from None
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            raise UserError(f"{document.name}:{key_node.start_mark.line + 1}: a key must be a name.")
        key, line = key_node.value, key_node.start_mark.line + 1
        if key in seen:
            raise UserError(
                f"{document.name}:{line}: key '{key}' is given twice; the first is on line {seen[key]}."
            )
        seen[key] = line
    loader.flatten_mapping(node)
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        document.lines.setdefault((*where, key), key_node.start_mark.line + 1)
        result[key] = _build(loader, value_node, (*where, key), document)
    return result


def parse_scalar(text: str) -> Any:
    """Return what `text` means as one YAML 1.2 scalar."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text
