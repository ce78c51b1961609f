"""What a field may hold beyond its type: each function says what is wrong with a value, or nothing."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Union

import numpy as np

from rollbus_wire.limits import MAX_NAME, MAX_TEXT

#: Fields of type ``str`` that people read; all others name something.
TEXTS = frozenset({"text", "traceback", "reason", "failure", "where"})


def _name(value: str) -> str:
    return "" if len(value) <= MAX_NAME else "%d characters; at most %d" % (len(value), MAX_NAME)


def _text(value: str) -> str:
    return "" if len(value) <= MAX_TEXT else "%d characters; at most %d" % (len(value), MAX_TEXT)


def _integer(value: int) -> str:
    return "got bool" if type(value) is bool else ""


def _number(value: Union[int, float]) -> str:
    if type(value) is bool:
        return "got bool"
    return "" if math.isfinite(value) else "%s is no number to calculate with" % value


def _integers(value: List[Any]) -> str:
    return _all(value, int, "whole numbers")


def _bytes(value: List[Any]) -> str:
    return _all(value, bytes, "bytes")


def _arrays(value: Dict[str, Any]) -> str:
    return _all(value.values(), np.ndarray, "arrays")


def _counts(value: Dict[str, Any]) -> str:
    return _all(value.values(), int, "whole numbers")


def _all(values: Any, kind: type, what: str) -> str:
    for value in values:
        if type(value) is not kind:
            return "holds a %s; only %s" % (type(value).__name__, what)
    return ""


#: By annotation; "text" is for `TEXTS`.
CONTENTS: Dict[str, Callable[[Any], str]] = {
    "int": _integer, "str": _name, "text": _text, "float": _number, "List[int]": _integers,
    "List[bytes]": _bytes, "Arrays": _arrays, "Dict[str, int]": _counts,
}  # fmt: skip
