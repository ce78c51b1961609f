"""What a header may hold is checked here: how much before it is read, how deep and by which names after.

msgpack bounds each container but not their sum, so that a few megabytes of empty maps would become
hundreds of megabytes of objects.
"""

from __future__ import annotations

from typing import Any, List, Tuple

import msgpack

from .errors import LimitExceeded, WireError
from .limits import MAX_DEPTH, MAX_KEY, TEXT_ELEMENT


def _tables() -> Tuple[List[int], List[int], List[Tuple[int, int, int]]]:
    """By first byte: bytes of the element; children of a short container; for others (bytes of the length
    that follows, bytes beside length and content, children per unit of length; 0: content is bytes)."""
    size, children, sized = [1] * 256, [0] * 256, [(0, 0, 0)] * 256
    for byte in range(0x80, 0x90):
        children[byte], children[byte + 0x10] = 2 * (byte & 15), byte & 15
    for byte in range(0xA0, 0xC0):
        size[byte] = 1 + (byte & 31)
    fixed = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    fixed.update({0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18})
    for byte, value in fixed.items():
        size[byte] = value
    for first, extra, per_unit, lengths in (
        (0xC4, 1, 0, (1, 2, 4)), (0xC7, 2, 0, (1, 2, 4)), (0xD9, 1, 0, (1, 2, 4)),
        (0xDC, 1, 1, (2, 4)), (0xDE, 1, 2, (2, 4)),
    ):  # fmt: skip
        for place, length in enumerate(lengths):
            size[first + place], sized[first + place] = 0, (length, extra, per_unit)
    return size, children, sized


#: Texts with a length of their own begin with this byte or the next two.
_TEXT = 0xD9
_SIZE, _CHILDREN, _SIZED = _tables()
#: Types of values that `check_values` looks into or refuses.
_LOOKED_AT = frozenset({dict, list, msgpack.Timestamp})


def bound_elements(header: Any, limit: int) -> None:
    """Raise `LimitExceeded` if msgpack bytes hold, or say they hold, more than ``limit`` elements.

    Reads no content and allocates nothing; what is cut short is left to the reader of msgpack.
    """
    if len(header) <= limit:
        return
    place, end, due, seen = 0, len(header), 1, 0
    while due and place < end:
        byte = header[place]
        step, more = _SIZE[byte], _CHILDREN[byte]
        if not step:
            width, extra, per_unit = _SIZED[byte]
            length = int.from_bytes(header[place + 1 : place + 1 + width], "big")
            step, more = (width + extra, length * per_unit) if per_unit else (width + extra + length, 0)
            if byte >= _TEXT:
                seen += step // TEXT_ELEMENT if not per_unit else 0
        place += step
        seen += 1
        due += more - 1
        if seen + due > limit:
            raise LimitExceeded("a header of %d or more elements; at most %d" % (seen + due, limit))


def check_values(header: Any) -> None:
    """Raise `WireError` for a header that is too deep, has keys that are no short text, or a timestamp.

    Extension -1 is msgpack's own: it becomes a `Timestamp` without asking the hook.
    """
    level = [header]
    for _ in range(MAX_DEPTH):
        below: List[Any] = []
        for value in [each for each in level if type(each) in _LOOKED_AT]:
            kind = type(value)
            if kind is dict:
                if value:
                    _check_keys(value)
                    below += value.values()
            elif kind is list:
                below += value
            else:
                raise WireError("extension type -1, a timestamp (%s), is not on the wire" % value)
        if not below:
            return
        level = below
    raise LimitExceeded("lists and maps are more than %d deep" % MAX_DEPTH)


def _check_keys(value: Any) -> None:
    if bytes in map(type, value):
        raise WireError("a key of a map is bytes; keys are text")
    longest = max(map(len, value))
    if longest > MAX_KEY:
        raise LimitExceeded("a key of %d characters; at most %d" % (longest, MAX_KEY))
