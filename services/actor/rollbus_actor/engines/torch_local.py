"""The policy as a torch module in the actor's own process."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines.base import Forward, check_tensors
from rollbus_core.version import Version
from rollbus_policies.base import Ask
from rollbus_wire.errors import SpecError


class Engine:
    """Runs ``policy.act`` on ``device``; weights are copied into its tensors, which stay where they are."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        """``threads`` > 0 sets torch's threads, which is per process."""
        import torch

        self._torch = torch
        if threads > 0 and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self.policy = policy.to(device).eval().requires_grad_(False)
        self.version: Version | None = None
        self._lock = threading.Lock()

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows; see `rollbus_actor.engines.base.InferenceEngine`."""
        with self._lock:
            version = self.version
            if version is None:
                raise SpecError("the engine has no weights yet: apply a version before acting")
            with self._torch.inference_mode():
                return Forward(self.policy.act(obs, state, ask, seeds), version)

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy in place; see `rollbus_actor.engines.base.InferenceEngine`."""
        with self._lock:
            own = self.policy.state_dict()
            check_tensors(
                {name: tuple(value.shape) for name, value in own.items()},
                {name: tuple(value.shape) for name, value in tensors.items()},
                version,
            )
            with self._torch.no_grad():
                for name, value in own.items():
                    value.copy_(self._torch.as_tensor(np.asarray(tensors[name])))
            self.version = Version.of(version)

    def pin(self, version: Version) -> None:
        """The weights that the policy has now are ``version``: nothing needs to be read before acting."""
        self.version = version
