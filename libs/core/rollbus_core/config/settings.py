"""What recipe, base recipe and command line set, merged key by key."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollbus_core.config.recipe import SECTIONS
from rollbus_core.config.source import COMMAND_LINE, DEFAULT, Document, Plain, Setting, parse, plain, read
from rollbus_wire.errors import ConfigError


def gather(path: Path, overrides: Sequence[str]) -> tuple[dict[str, Setting], list[str]]:
    """(dotted key -> setting, problems). A key is two deep: "env.kwargs" is one setting."""
    settings: dict[str, Setting] = {}
    problems: list[str] = []
    for document in reversed(_chain(path)):
        _flatten(document, settings, problems)
    for override in overrides:
        _override(override, settings, problems)
    return settings, problems


def _chain(path: Path) -> list[Document]:
    """The file and its bases, nearest first."""
    chain: list[Document] = []
    while True:
        if any(path.resolve() == known.path.resolve() for known in chain):
            names = " -> ".join(str(known.path) for known in chain)
            raise ConfigError(f"{chain[-1].places['base']}: base recipes form a circle: {names} -> {path}")
        if chain and not path.is_file():
            raise ConfigError(f"{chain[-1].places['base']}: base recipe {path} does not exist")
        document = read(path)
        chain.append(document)
        if "base" not in document.tree:
            return chain
        base = document.tree.pop("base")
        if not isinstance(base, Plain) or not base.text:
            raise ConfigError(f"{document.places['base']}: base must name a file, not {plain(base)!r}")
        path = path.parent / base.text


def _flatten(document: Document, settings: dict[str, Setting], problems: list[str]) -> None:
    for section, tree in document.tree.items():
        if section not in SECTIONS:
            settings[section] = document.setting(section, tree)
        elif isinstance(tree, dict):
            for key, value in tree.items():
                dotted = f"{section}.{key}"
                settings[dotted] = document.setting(dotted, value)
        elif not (isinstance(tree, Plain) and tree.value is None):
            problems.append(
                f"{document.places[section]}: {section!r} is a section with keys of its own, "
                f"not {plain(tree)!r}; see: rollbus explain {section}"
            )


def _override(text: str, settings: dict[str, Setting], problems: list[str]) -> None:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        problems.append(f"{COMMAND_LINE}: {text!r} is not key=value, such as run.seed=3")
        return
    try:
        tree: Any = parse(value, f"{COMMAND_LINE}: {key}")
    except ConfigError as error:
        problems.append(str(error))
        return
    if len(parts) == 1 and parts[0] in SECTIONS:
        problems.append(
            f"{COMMAND_LINE}: {key!r} is a section; set one of its keys: {key}.KEY=VALUE "
            f"(see: rollbus explain {key})"
        )
        return
    dotted, deeper = ".".join(parts[:2]), parts[2:]
    origin = COMMAND_LINE
    if deeper:
        before = settings.get(dotted)
        tree = _put(before.tree if before else {}, deeper, tree)
        if before and before.origin not in (COMMAND_LINE, DEFAULT):
            origin = f"{before.origin}, {COMMAND_LINE}"
    settings[dotted] = Setting(tree, COMMAND_LINE, origin)


def _put(tree: Any, path: list[str], value: Any) -> dict[str, Any]:
    """A copy of mapping ``tree`` with ``value`` at ``path``."""
    copy = dict(tree) if isinstance(tree, dict) else {}
    copy[path[0]] = _put(copy.get(path[0], {}), path[1:], value) if len(path) > 1 else value
    return copy
