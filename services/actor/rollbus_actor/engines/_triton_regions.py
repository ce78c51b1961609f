"""System shared memory between an actor and a Triton server on the same host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

ALIGNMENT = 64


class Regions:
    """One region for inputs and one for outputs, made larger when a batch needs it."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.inputs, self.outputs = f"{name}_in", f"{name}_out"
        #: Where each array of the present request lies in its region.
        self.offsets: dict[str, int] = {}
        self._handles: dict[str, tuple[Any, int]] = {}

    def hold(self, arrays: Mapping[str, np.ndarray], outputs: Mapping[str, tuple[int, int]]) -> None:
        """Write ``arrays`` and make room for float32 ``outputs`` of the given shapes."""
        shared = _shared_memory()
        self._reserve(self.inputs, {name: array.nbytes for name, array in arrays.items()})
        self._reserve(self.outputs, {name: 4 * rows * size for name, (rows, size) in outputs.items()})
        for name, array in arrays.items():
            shared.set_shared_memory_region(self._handles[self.inputs][0], [array], self.offsets[name])

    def read(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        """A copy of the output ``name``."""
        handle = self._handles[self.outputs][0]
        view = _shared_memory().get_contents_as_numpy(handle, np.float32, shape, self.offsets[name])
        return np.array(view)

    def close(self) -> None:
        """Take both regions from the server and from this host."""
        for region in list(self._handles):
            self._drop(region)

    def _reserve(self, region: str, sizes: Mapping[str, int]) -> None:
        total = 0
        for name, num_bytes in sizes.items():
            self.offsets[name] = total
            total += -(-num_bytes // ALIGNMENT) * ALIGNMENT
        if region in self._handles and self._handles[region][1] >= total:
            return
        self._drop(region)
        room = 1 << max(12, (total - 1).bit_length())
        handle = _shared_memory().create_shared_memory_region(region, f"/{region}", room)
        self._handles[region] = handle, room
        self._client.register_system_shared_memory(region, f"/{region}", room)

    def _drop(self, region: str) -> None:
        if region in self._handles:
            self._client.unregister_system_shared_memory(region)
            _shared_memory().destroy_shared_memory_region(self._handles.pop(region)[0])


def _shared_memory() -> Any:
    from tritonclient.utils import shared_memory

    return shared_memory
