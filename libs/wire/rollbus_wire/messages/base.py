"""What all messages share: the protocol's version, array types, the base class."""

from __future__ import annotations

from typing import Dict

import numpy as np

#: Another major version is refused; a minor one is logged.
PROTOCOL = (1, 0)

Array = np.ndarray
Arrays = Dict[str, np.ndarray]


class Message:
    """Base of all messages."""

    kind = ""
    plane = ""
