"""Recipe files and overrides as trees that remember what was written where.

A tree is a dict, a list or a `Plain`. YAML is read by the rules of YAML 1.2: ``1e-4`` and
``1_000`` are numbers, ``on`` and ``12:30`` are strings. Duplicate keys are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from rollbus_core.reading import read_at_most
from rollbus_wire.errors import ConfigError

COMMAND_LINE = "command line"
DEFAULT = "default"
#: Characters of a file, levels in it, digits of a number.
MAX_CHARS, MAX_DEPTH, MAX_DIGITS = 1 << 20, 16, 320
#: First line of a resolved file; its comments name where each value came from.
RESOLVED_MARK = "# Resolved configuration"

_FLOAT = r"[-+]?(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf"
_RESOLVERS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
)


@dataclass(frozen=True)
class Plain:
    """A scalar: its value, and its text where a string is wanted."""

    value: Any
    text: str
    quoted: bool = False


@dataclass(frozen=True)
class Setting:
    """One value that somebody set."""

    tree: Any
    #: Where it stands: "recipes/x.yaml:12" or "command line".
    place: str
    #: Where it comes from: ``place``, or what the comment of a resolved file says.
    origin: str


@dataclass
class Document:
    """One file: top-level keys, and where each key (dotted, two deep) stands and comes from."""

    path: Path
    tree: dict[str, Any]
    places: dict[str, str]
    origins: dict[str, str]

    def setting(self, key: str, tree: Any) -> Setting:
        """The setting of dotted ``key``."""
        return Setting(tree, self.places[key], self.origins.get(key, self.places[key]))


class _Loader(yaml.SafeLoader):
    """Composes nodes; scalars get the tags of `_RESOLVERS`. There are no aliases: a few of them could
    stand for millions of values, or for themselves."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        mark: Any = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} deep", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back equal."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, Dumper):
    _class.yaml_implicit_resolvers = {}
    for _tag, _pattern, _first in _RESOLVERS:
        _class.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}",
            re.compile(f"^(?:{_pattern})$"),
            ["" if c == "\0" else c for c in _first],
        )
Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if "\n" in text else None
    ),
)
Dumper.add_multi_representer(PurePath, lambda dumper, path: dumper.represent_str(str(path)))


def read(path: Path, kind: str = "recipe") -> Document:
    """The document in ``path``, a ``kind``; raises `ConfigError` if it is missing or no mapping."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ConfigError(f"{path} is no file; give a .yaml file")
        with open(path, encoding="utf-8") as file:
            text = read_at_most(file, MAX_CHARS)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of a {kind} ({kind}s/*.yaml)") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; give a .yaml file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as text: {error}") from None
    node = _compose(text, str(path))
    if node is None:
        raise ConfigError(
            f"{path} is empty; a recipe is a mapping of sections such as 'env:' and 'algorithm:'"
        )
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(
            f"{path}:{node.start_mark.line + 1}: a recipe is a mapping of sections such as 'env:', "
            f"not a {_kind(node)}"
        )
    tree = _tree(node, str(path))
    places, origins = _origins(node, str(path), text)
    return Document(path, tree, places, origins)


def parse(text: str, where: str) -> Any:
    """The tree of one value."""
    node = _compose(text, where)
    return Plain(None, "") if node is None else _tree(node, where)


def plain(tree: Any) -> Any:
    """The tree as ordinary values."""
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [plain(value) for value in tree]
    return tree.value


def _compose(text: str, where: str) -> yaml.Node | None:
    if len(text) > MAX_CHARS:
        raise ConfigError(f"{where}: {len(text)} characters; a recipe has at most {MAX_CHARS}")
    try:
        return yaml.compose(text, Loader=_Loader)
    except RecursionError:
        raise ConfigError(
            f"{where}: lists and mappings are too deep; a recipe is two or three deep"
        ) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = where
        if mark is not None:
            place = f"{where}:{mark.line + 1}"
            line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
            if "\t" in line[: mark.column + 1]:
                raise ConfigError(f"{place}: a tab; YAML is indented with spaces") from None
        raise ConfigError(f"{place}: not readable as YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not readable as YAML: {error}") from None


def _kind(node: yaml.Node) -> str:
    return (
        "list" if isinstance(node, yaml.SequenceNode) else "mapping" if node.tag.endswith("map") else "value"
    )


def _tree(node: yaml.Node, where: str) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, where)
    if isinstance(node, yaml.SequenceNode):
        return [_tree(child, where) for child in node.value]
    assert isinstance(node, yaml.MappingNode)
    tree: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{where}:{line}: a key is a name, not a {_kind(key)}")
        if key.value in tree:
            raise ConfigError(
                f"{where}:{line}: key {key.value!r} is given twice, first in line "
                f"{lines[key.value]}; keep one"
            )
        tree[key.value], lines[key.value] = _tree(value, where), line
    return tree


def _scalar(node: yaml.ScalarNode, where: str) -> Plain:
    text = node.value
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError(f"{where}:{node.start_mark.line + 1}: half of a character (\\ud800 to \\udfff)")
    kind = node.tag.rpartition(":")[2]
    if node.style or kind == "str":
        return Plain(text, text, quoted=True)
    number = text.replace("_", "")
    if len(number) > MAX_DIGITS:
        raise ConfigError(f"{where}:{node.start_mark.line + 1}: a number of {len(number)} digits")
    if kind == "bool":
        return Plain(text.lower() == "true", text)
    if kind == "null":
        return Plain(None, text)
    if kind == "int":
        return Plain(int(number, 16 if number.startswith("0x") else 10), text)
    if kind == "float":
        return Plain(float(number.replace(".inf", "inf")), text)
    raise ConfigError(f"{where}:{node.start_mark.line + 1}: tag {node.tag} is not allowed")


def _origins(node: yaml.MappingNode, where: str, text: str) -> tuple[dict[str, str], dict[str, str]]:
    """(file and line of each key, what the comments of a resolved file say)."""
    comments = text.splitlines() if text.startswith(RESOLVED_MARK) else []
    places: dict[str, str] = {}
    origins: dict[str, str] = {}

    def note(dotted: str, key: yaml.Node, value: yaml.Node) -> None:
        places[dotted] = f"{where}:{key.start_mark.line + 1}"
        end = value.end_mark
        if comments and end.line == key.start_mark.line:
            match = re.match(r"\s+# (.+)$", comments[end.line][end.column :])
            if match:
                origins[dotted] = match.group(1)

    for key, value in node.value:
        note(key.value, key, value)
        if isinstance(value, yaml.MappingNode):
            for child, grandchild in value.value:
                note(f"{key.value}.{child.value}", child, grandchild)
    return places, origins
