"""What all messages share: the protocol's version, array types, the base class."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet

import numpy as np

#: Another major version is refused; a minor one is logged.
PROTOCOL = (1, 0)

Array = np.ndarray
Arrays = Dict[str, np.ndarray]


class Message:
    """Base of all messages."""

    kind = ""
    plane = ""

    def implied(self) -> FrozenSet[str]:
        """Names of fields that are not sent, because `filled` knows them."""
        return _NOTHING

    @classmethod
    def filled(cls, known: Dict[str, Any]) -> Dict[str, Any]:
        """The fields that the checked ``known`` ones imply."""
        return {}


_NOTHING: FrozenSet[str] = frozenset()
