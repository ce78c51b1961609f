"""Values as their field declares them, and declarations in words."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollbus_core.config.source import Plain

_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def as_declared(tree: Any, annotation: Any) -> Any:
    """``tree`` as ordinary values: text stays text where a string is declared, ``1e6`` may be an
    integer where one is declared. Types are not checked here."""
    kinds = _alternatives(annotation)
    if isinstance(tree, Plain):
        return _scalar(tree, annotation, kinds)
    kind = kinds[0] if len(kinds) == 1 else Any
    inner = get_args(kind)
    if isinstance(tree, list):
        element = inner[0] if inner else Any
        return [as_declared(value, element) for value in tree]
    fields = _nested_fields(kind)
    value_type = inner[1] if len(inner) == 2 else Any
    return {key: as_declared(value, fields.get(key, value_type)) for key, value in tree.items()}


def describe(field: FieldInfo) -> str:
    """What a value of ``field`` must be: "an integer >= 1"."""
    text = type_words(field.annotation)
    bounds = []
    for item in field.metadata:
        bounds += [f"{sign} {getattr(item, name)}" for name, sign in _SIGNS.items() if hasattr(item, name)]
        if getattr(item, "min_length", None):
            bounds.append(f"of length >= {item.min_length}")
    return " ".join([text, " and ".join(bounds)]).strip()


def type_words(annotation: Any) -> str:
    """``annotation`` for people."""
    words = []
    for kind in _alternatives(annotation):
        inner = get_args(kind)
        if get_origin(kind) is Literal:
            words.append("one of " + ", ".join(map(str, inner)))
        elif get_origin(kind) in (list, tuple, set, frozenset):
            words.append(
                "a list" + (f" (each {describe(FieldInfo.from_annotation(inner[0]))})" if inner else "")
            )
        elif get_origin(kind) is dict or kind is dict or _nested_fields(kind):
            words.append("a mapping")
        elif kind is Any:
            words.append("any value")
        else:
            words.append(_WORDS.get(kind, getattr(kind, "__name__", str(kind))))
    if type(None) in get_args(annotation):
        words.append("null")
    return " or ".join(words)


def unit(field: FieldInfo) -> str:
    """The unit of ``field``, or ""."""
    extra = field.json_schema_extra
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _scalar(tree: Plain, annotation: Any, kinds: list[Any]) -> Any:
    if kinds and all(_is_text(kind) for kind in kinds):
        optional = type(None) in get_args(annotation)
        if tree.value is None and (optional or tree.text):
            return None
        return tree.text
    if kinds == [int] and isinstance(tree.value, float) and tree.value.is_integer():
        return int(tree.value)
    return tree.value


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return all(isinstance(choice, str) for choice in get_args(kind))
    return kind is str


def _alternatives(annotation: Any) -> list[Any]:
    """The types of a union except null; the type itself if it is none."""
    if get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for kind in get_args(annotation) if kind is not type(None)]
    return [annotation]


def _nested_fields(kind: Any) -> dict[str, Any]:
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
