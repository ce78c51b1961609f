"""The policy's trunk in numpy: nothing to import, 2-3 times faster than torch for small perceptrons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines._trunk import TrunkEngine, has_trunk
from rollbus_core.version import Version
from rollbus_policies.trunk import Node, Trunk
from rollbus_wire.errors import SpecError

#: Seconds from choosing this engine to its first pass.
START_S = 0.0

Values = dict[str, np.ndarray]


def declines(policy: Any, device: str) -> str:
    """Why this engine cannot serve ``policy``; "" if it can."""
    if device != "cpu":
        return f"numpy runs on the CPU, not on {device}"
    if not has_trunk(policy):
        return "the policy does not describe its trunk"
    unknown = sorted({node.op for node in policy.describe(False).nodes} - set(_OPERATIONS))
    return f"numpy has no {', '.join(unknown)}" if unknown else ""


class Engine(TrunkEngine):
    """One call per operation; weights are views of the policy's tensors."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        super().__init__(policy, device, threads)
        reason = declines(policy, device)
        if reason:
            raise SpecError(f"{reason}; set actor.engine: torch_local")
        self._plans: dict[bool, _Plan] = {}

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Values:
        plan = self._plans.get(value)
        if plan is None:
            plan = self._plans[value] = _Plan(self.policy.describe(value), self.policy)
        return plan.run(obs, state)

    def _swapped(self, version: Version) -> None:
        super()._swapped(version)
        self._probe(version)


class _Plan:
    """A trunk with its weights looked up: matrices transposed once, as views."""

    def __init__(self, trunk: Trunk, policy: Any) -> None:
        own = policy.state_dict()
        self.trunk, self._weights = trunk, {name: own[name].numpy() for name in trunk.weights}
        self._steps = [self._step(node) for node in trunk.nodes]

    def run(self, obs: Mapping[str, np.ndarray], state: np.ndarray | None) -> Values:
        """All outputs of the trunk."""
        values: Values = {name: obs[name[4:]] for name in self.trunk.inputs if name != "state"}
        if state is not None:
            values["state"] = state
        for name, compute in self._steps:
            values[name] = compute(values)
        return {name: values[value] for name, value in self.trunk.outputs.items()}

    def _step(self, node: Node) -> tuple[str, Callable[[Values], np.ndarray]]:
        weights = [self._weights[name] for name in node.inputs if name in self._weights]
        names = [name for name in node.inputs if name not in self._weights]
        compute = _OPERATIONS[node.op](*weights, **node.attributes)
        if len(names) == 1:
            (name,) = names
            return node.output, lambda values: compute(values[name])
        return node.output, lambda values: compute(*[values[name] for name in names])


def _linear(weight: np.ndarray, bias: np.ndarray) -> Callable[..., np.ndarray]:
    transposed = weight.T

    def compute(x: np.ndarray) -> np.ndarray:
        y = x @ transposed
        y += bias
        return y

    return compute


def _sigmoid(x: np.ndarray) -> np.ndarray:
    # By tanh: exp overflows for large negative x.
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


def _gru(w_ih: np.ndarray, w_hh: np.ndarray, b_ih: np.ndarray, b_hh: np.ndarray) -> Callable[..., np.ndarray]:
    inputs, hidden, size = _linear(w_ih, b_ih), _linear(w_hh, b_hh), w_hh.shape[1]

    def compute(x: np.ndarray, state: np.ndarray) -> np.ndarray:
        a, b = inputs(x), hidden(state)
        gates = _sigmoid(a[:, : 2 * size] + b[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        new = np.tanh(a[:, 2 * size :] + reset * b[:, 2 * size :])
        return new + update * (state - new)

    return compute


def _normalise(shift: np.ndarray, scale: np.ndarray, *, clip: float) -> Callable[..., np.ndarray]:
    return lambda x: np.clip((x - shift) * scale, np.float32(-clip), np.float32(clip))


def _one_hot(*, low: int, num: int) -> Callable[..., np.ndarray]:
    rows = np.eye(num, dtype=np.float32)
    return lambda x: rows[x - low]


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


#: Operation -> function of (weights, attributes) that makes the function of the values.
_OPERATIONS: dict[str, Callable[..., Callable[..., np.ndarray]]] = {
    "linear": _linear,
    "gru": _gru,
    "normalise": _normalise,
    "one_hot": _one_hot,
    # The values of a linear layer are nobody else's: activations overwrite them.
    "tanh": lambda: lambda x: np.tanh(x, out=x),
    "relu": lambda: lambda x: np.maximum(x, np.float32(0), out=x),
    "elu": lambda: _elu,
    "silu": lambda: lambda x: x * _sigmoid(x),
    "float": lambda: lambda x: x.astype(np.float32),
    "multiply": lambda factor: lambda x: x * np.float32(factor),
    "permute": lambda axes: lambda x: x.transpose(axes),
    "reshape": lambda shape: lambda x: x.reshape(-1, *shape),
    "concat": lambda: lambda *x: np.concatenate(x, 1),
}
