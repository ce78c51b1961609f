"""The policy's trunk in numpy: nothing to import, 2-3 times faster than torch for small perceptrons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines._numpy_ops import Plan, Values, missing
from rollbus_actor.engines._trunk import TrunkEngine, no_trunk
from rollbus_core.version import Version
from rollbus_wire.errors import SpecError

#: Seconds from choosing this engine to its first pass.
START_S = 0.0


def declines(policy: Any, device: str) -> str:
    """Why this engine cannot serve ``policy``; "" if it can."""
    if device != "cpu":
        return f"numpy runs on the CPU, not on {device}"
    if reason := no_trunk(policy):
        return reason
    unknown = missing([node.op for node in policy.describe(False).nodes])
    return f"numpy has no {', '.join(unknown)}" if unknown else ""


class Engine(TrunkEngine):
    """One call per operation; weights are views of the policy's tensors."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        super().__init__(policy, device, threads)
        reason = declines(policy, device)
        if reason:
            raise SpecError(f"{reason}; set actor.engine: torch_local")
        self._plans: dict[bool, Plan] = {}

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Values:
        plan = self._plans.get(value)
        if plan is None:
            plan = self._plans[value] = self._plan(value)
        inputs = {f"obs/{key}": array for key, array in obs.items()}
        return plan.run(inputs if state is None else inputs | {"state": state})

    def _plan(self, value: bool) -> Plan:
        trunk, own = self.policy.describe(value), self.policy.state_dict()
        nodes = [(node.op, node.inputs, node.output, node.attributes) for node in trunk.nodes]
        return Plan(nodes, trunk.outputs, {name: own[name].numpy() for name in trunk.weights})

    def _swapped(self, version: Version) -> None:
        super()._swapped(version)
        self._probe(version)
