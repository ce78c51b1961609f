"""What every engine in the actor's own process shares: one policy, one version at a time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines.base import Forward, check_tensors
from rollbus_core.version import Version
from rollbus_core.weights.copying import copy_tensors
from rollbus_policies.base import Act, Ask
from rollbus_wire.errors import SpecError


class WeightHolder:
    """Holds ``policy`` on ``device``; weights are copied into its tensors, which stay where they are."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        """``threads`` > 0 sets torch's threads, which is per process."""
        import torch

        self._torch = torch
        if threads > 0 and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self.policy = policy.to(device).eval().requires_grad_(False)
        self.device = torch.device(device)
        self.version: Version | None = None
        #: Held by whoever uses or changes the weights.
        self.lock = threading.RLock()

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows; see `rollbus_actor.engines.base.InferenceEngine`."""
        with self.lock:
            version = self.version
            if version is None:
                raise SpecError("the engine has no weights yet: apply a version before acting")
            return Forward(self._decide(obs, state, ask, seeds), version)

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy in place; see `rollbus_actor.engines.base.InferenceEngine`."""
        with self.lock:
            own = self.policy.state_dict()
            check_tensors(
                {name: tuple(value.shape) for name, value in own.items()},
                {name: tuple(value.shape) for name, value in tensors.items()},
                version,
            )
            with self._torch.no_grad():
                if self.device.type == "cpu" and all(v.dtype != self._torch.bfloat16 for v in own.values()):
                    copy_tensors({name: value.numpy() for name, value in own.items()}, tensors)
                else:
                    for name, value in own.items():
                        array = np.asarray(tensors[name])
                        array = array if array.flags.writeable else array.copy()
                        value.copy_(self._torch.from_numpy(array))
            self.pin(version)

    def pin(self, version: Version) -> None:
        """The weights that the policy has now are ``version``: nothing needs to be read before acting."""
        with self.lock:
            self._swapped(Version.of(version))
            self.version = Version.of(version)

    def _decide(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        raise NotImplementedError

    def _swapped(self, version: Version) -> None:
        """The policy's tensors have new values, about to act as ``version``."""
