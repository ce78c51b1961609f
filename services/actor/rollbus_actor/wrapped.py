"""An engine around another one: what both kinds of wrappers pass on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rollbus_actor.engines.base import InferenceEngine
from rollbus_core.version import Version


class WrappedEngine:
    """Passes everything but ``act`` on to ``engine``."""

    def __init__(self, engine: InferenceEngine) -> None:
        self.engine = engine

    @property
    def version(self) -> Version | None:
        """The engine's."""
        return self.engine.version

    @property
    def choice(self) -> str:
        """The engine's, for people."""
        return str(getattr(self.engine, "choice", ""))

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """The engine's."""
        self.engine.set_weights(version, tensors)
