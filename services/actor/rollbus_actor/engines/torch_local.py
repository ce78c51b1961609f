"""The policy as a torch module in the actor's own process.

On the CPU and for small batches the pass costs less than sampling would cost in torch, so decisions are
made by the policy's sampler in numpy. `reference` mode is `policy.act` itself: its log-probabilities equal
the learner's to the last bit at equal batch shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rollbus_actor.engines._graphs import CapturedRuns, capture_on, pad, padded_size
from rollbus_actor.engines._steps import OneVersion
from rollbus_actor.engines._trunk import TrunkEngine, no_trunk
from rollbus_actor.engines._weights import WeightHolder
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, Decoder
from rollbus_wire.errors import ConfigError

#: Seconds from choosing this engine to its first pass.
START_S = 0.0
#: What stands in where results must not depend on a choice: evaluation.
EXACT = ("torch_local", {"mode": "reference"})

Mode = Literal["eager", "reference", "compiled", "graphs"]


class Config(BaseModel):
    """Settings of this engine, ``actor.engine_options``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode = Field(
        "eager",
        description="eager; reference: policy.act; compiled: torch.compile, seconds at each new batch size; "
        "graphs: CUDA, HIP or NPU graphs. Deterministic runs and policies without a trunk use reference.",
    )


def variants(device: str) -> list[dict[str, Any]]:
    """Options that are worth a measurement on ``device``."""
    return [{}] if device == "cpu" else [{}, {"mode": "graphs"}]


class Engine(TrunkEngine):
    """The trunk in torch and decisions by the sampler, or `policy.act` as it is."""

    def __init__(
        self, policy: Any, device: str = "cpu", threads: int = 0, config: Config | None = None
    ) -> None:
        """Raises `ConfigError` for graphs on a CPU."""
        import torch

        #: What runs: ``config.mode`` unless only `reference` can.
        self.mode: Mode = (config or Config()).mode
        if torch.are_deterministic_algorithms_enabled() or no_trunk(policy):
            self.mode = "reference"
        if self.mode == "reference":
            WeightHolder.__init__(self, policy, device, threads)
            return
        if self.mode == "graphs" and device == "cpu":
            raise ConfigError("actor.engine_options.mode: graphs need an accelerator; this device is cpu")
        super().__init__(policy, device, threads)
        self._keys = {value: list(policy.describe(value).inputs) for value in {False, self._with_value}}
        self._run = _runner(policy, self.mode, self.device)

    def decoder(self, want: tuple[str, ...]) -> Decoder:
        """The policy's own, which computes as `reference` does; see `rollbus_actor.engines.base`."""
        decoder: Decoder = self.policy.decoder(want)
        return OneVersion(self, decoder)

    def _decide(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        if self.mode != "reference":
            return super()._decide(obs, state, ask, seeds)
        with self._torch.inference_mode():
            act: Act = self.policy.act(obs, state, ask, seeds)
        return act

    def _swapped(self, version: Version) -> None:
        if self.mode != "reference":
            super()._swapped(version)

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Mapping[str, np.ndarray]:
        with self._torch.inference_mode():
            inputs = {
                name: self._tensor(state if name == "state" else obs[name[4:]]) for name in self._keys[value]
            }
            outputs = self._run(inputs, value, num_rows)
            return {name: output.numpy(force=True) for name, output in outputs.items()}

    def _tensor(self, array: Any) -> Any:
        tensor = self._torch.from_numpy(array if array.flags.writeable else array.copy())
        return tensor if self.device.type == "cpu" else tensor.to(self.device, non_blocking=True)


def _runner(policy: Any, mode: Mode, device: Any) -> Callable[[dict[str, Any], bool, int], dict[str, Any]]:
    if mode == "graphs":
        return CapturedRuns(policy.infer, capture_on(device), device)
    if mode == "eager":
        return lambda inputs, value, _: policy.infer(inputs, value)
    import torch

    compiled = torch.compile(policy.infer, dynamic=False)

    def run(inputs: dict[str, Any], value: bool, num_rows: int) -> dict[str, Any]:
        size = padded_size(num_rows)
        outputs = compiled({name: pad(tensor, size) for name, tensor in inputs.items()}, value)
        return {name: output[:num_rows] for name, output in outputs.items()}

    return run
