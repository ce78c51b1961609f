"""How the services of one process bind and dial: in the clear on this machine, with keys beyond.

Where ROLLBUS_KEYS names a folder, every tcp address has keys, loopback too; unix sockets in the run's 0700
folder never need them. docs/security.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollbus_core.key_folder import configured
from rollbus_wire.gate import Gate
from rollbus_wire.keys import Key, own_key
from rollbus_wire.limits import MAX_FRAME_BYTES
from rollbus_wire.roles import BOUND_BY
from rollbus_wire.zmq_link import ZmqLink

#: By what name other hosts reach this one; by default its host name.
HOST_VARIABLE = "ROLLBUS_HOST"


class Access:
    """One per process. ``folder`` None: no keys, so nothing beyond loopback."""

    def __init__(self, folder: Path | None, log: Callable[[str], Any] = lambda text: None) -> None:
        self._folder, self._log = folder, log
        self._gate: Gate | None = None

    @classmethod
    def from_environment(cls, log: Callable[[str], Any] = lambda text: None) -> Access:
        """As ROLLBUS_KEYS says."""
        return cls(configured(), log)

    def bind(
        self, plane: str, endpoint: str, run_id: str = "", index: int = 0,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> ZmqLink:  # fmt: skip
        """Listen on ``endpoint`` for the messages of ``plane``, with the key of the role that binds it."""
        if self._folder is None or not endpoint.startswith("tcp://"):
            return ZmqLink.bind(endpoint, run_id, max_frame_bytes=max_frame_bytes)
        key = own_key(self._folder, BOUND_BY[plane], index)
        if self._gate is None:
            self._gate = Gate(self._folder, self._log, os.environ.get(HOST_VARIABLE, ""))
        return self._gate.bind(endpoint, plane, key, run_id, max_frame_bytes=max_frame_bytes)

    def connect(
        self, role: str, endpoint: str, run_id: str = "", producer: str = "", index: int = 0
    ) -> ZmqLink:
        """Dial ``endpoint`` as a service of ``role``."""
        key: Key | None = None
        if self._folder is not None and endpoint.startswith("tcp://"):
            key = own_key(self._folder, role, index)
        return ZmqLink.connect(endpoint, run_id, producer, key)

    def refusals(self) -> dict[str, int]:
        """Who was refused so far: "plane/reason/role" -> count."""
        if self._gate is None:
            return {}
        return {"/".join(refusal): count for refusal, count in list(self._gate.counts.items())}

    def close(self) -> None:
        """Close what was bound; for the end of the process."""
        if self._gate is not None:
            self._gate.close()
