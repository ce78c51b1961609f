"""What pydantic found, as one line each: where, key, value and what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rollbus_core.config import plugins
from rollbus_core.config.nearest import hint
from rollbus_core.config.source import DEFAULT, Plain, Setting, plain
from rollbus_core.config.values import describe, unit
from rollbus_wire.errors import RollbusError

#: A line says at most this much, and of more problems than this only their number is told.
MAX_LINE, MAX_PROBLEMS = 1000, 50


def refusal(problems: Sequence[str]) -> str:
    """One line per problem; values that are too long for people are cut in the middle."""
    lines = [_cut(problem) for problem in problems[:MAX_PROBLEMS]]
    more = len(problems) - len(lines)
    return "\n".join([*lines, f"and {more} more problems"] if more else lines)


def _cut(text: str) -> str:
    half = MAX_LINE // 2
    return text if len(text) <= MAX_LINE else f"{text[:half]} ... {text[-half:]}"


def field_problem(
    detail: Mapping[str, Any], models: Mapping[str, type[BaseModel]], settings: Mapping[str, Setting]
) -> str:
    """The line for one entry of ``ValidationError.errors()``."""
    section, name = (*map(str, detail["loc"]), "", "")[:2]
    message = told(detail["msg"])
    field = models[section].model_fields.get(name)
    if field is None:
        setting = settings.get(f"{section}.name")
        return f"{setting.place if setting else DEFAULT}: {section}: {message}"
    key = f"{section}.{name}"
    setting = settings.get(key)
    if setting is None:
        return f"{key} is missing: give {describe(field)} ({field.description or 'no default'})"
    value = plain(setting.tree)
    inside = ".".join(map(str, detail["loc"][2:]))
    if detail["type"] == "extra_forbidden" and inside:
        keys = [key for model in _inside(field.annotation) for key in model.model_fields]
        near = hint(str(detail["loc"][-1]), keys)
        return f"{setting.place}: unknown key {f'{key}.{inside}'!r}; there are {', '.join(keys)}{near}"
    expected = describe(field) + (f" in {unit(field)}" if unit(field) else "")
    if isinstance(value, (list, dict)) or detail["type"] == "value_error":
        expected += f" ({inside + ': ' if inside else ''}{message})"
    empty = isinstance(setting.tree, Plain) and not setting.tree.text
    return f"{setting.place}: {key} is {'empty' if empty else repr(value)}, must be {expected}"


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that ``annotation`` has inside, as of a list of them."""
    for each in get_args(annotation):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield each
        yield from _inside(each)


def told(message: Any) -> str:
    """What pydantic says of a value, for people."""
    text = str(message).removeprefix("Value error, ").replace("Input should be", "must be")
    return text.replace("Extra inputs are not permitted", "there is no such key")


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong: key, value, what is expected."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {told(first['msg'])}"


def plugin_keys(section: str, name: str) -> list[str]:
    """Plug-ins of ``section`` that have the key ``name``."""
    if section not in plugins.PLUGIN_PACKAGES or not name:
        return []
    owners = []
    for plugin in plugins.names(section):
        try:
            if name in plugins.section_model(section, plugin).model_fields:
                owners.append(plugin)
        except RollbusError:
            continue
    return owners
