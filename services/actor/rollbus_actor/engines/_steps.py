"""A policy's decoder inside an engine: one version at a time, and no weights that change under open rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rollbus_policies.base import Act, Decoder, Mode
from rollbus_wire.errors import SpecError

if TYPE_CHECKING:
    from rollbus_actor.engines._weights import WeightHolder


class OneVersion:
    """The ``decoder`` of the engine's policy, under the engine's lock."""

    def __init__(self, engine: WeightHolder, decoder: Decoder) -> None:
        self._engine, self._decoder = engine, decoder
        self._version = engine.version

    @property
    def num_rows(self) -> int:
        """Rows that are open."""
        return self._decoder.num_rows

    def admit(self, obs: Mapping[str, np.ndarray], mode: Mode | list[Mode], seeds: np.ndarray) -> np.ndarray:
        """See `Decoder`. Raises `SpecError` without weights, or with others than those of the open rows."""
        with self._engine.lock:
            if self._engine.version is None:
                raise SpecError("the engine has no weights yet: apply a version before acting")
            if not self._decoder.num_rows:
                self._version = self._engine.version
            self._check()
            return self._decoder.admit(obs, mode, seeds)

    def step(self) -> tuple[np.ndarray, Act] | None:
        """See `Decoder`. Raises `SpecError` if the weights are others than when the rows came."""
        with self._engine.lock:
            self._check()
            return self._decoder.step()

    def drop(self, numbers: np.ndarray) -> None:
        """See `Decoder`."""
        self._decoder.drop(numbers)

    def _check(self) -> None:
        if self._engine.version != self._version:
            raise SpecError(
                f"weights {self._engine.version} came while {self._decoder.num_rows} rows were being decided "
                f"by {self._version}: set weights when no row is open"
            )
