"""The deterministic part of a policy as data, for engines that are not torch. Importing this needs no torch.

A policy that has ``describe(value) -> Trunk`` can be served by any engine that knows `OPERATIONS`: from
observations to the raw parameters of the action distribution, the next recurrent state and, if ``value``,
the critic's value. Sampling stays with the policy's `sampler`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: What each operation gives for arrays x [B, ...]; names of attributes in brackets.
OPERATIONS = {
    "linear": "x @ w.T + b for x [B, I], w [O, I], b [O]",
    "conv": "2-D convolution of x [B, C, H, W] with w [O, C, k, k], b [O] [stride, padding]",
    "gru": "next state of torch's GRU cell for x, state, w_ih, w_hh, b_ih, b_hh (gates r, z, n)",
    "lstm": "next state, hidden and cells side by side, of torch's LSTM cell; inputs as gru (i, f, g, o)",
    "max_pool": "largest of size x size of x [B, C, H, W], padded with -inf [size, stride, padding]",
    "add": "x + y of one shape",
    "columns": "x[:, :end] [end]",
    "tanh": "", "relu": "", "elu": "alpha 1", "silu": "", "gelu": "exact, by erf",
    "normalise": "clip((x - shift) * scale, -clip, clip) [clip]",
    "one_hot": "float32 of integer classes, low is class 0 [low, num]",
    "float": "x as float32",
    "multiply": "x * factor [factor]",
    "permute": "axes in the order of [axes], the batch axis included",
    "reshape": "x as [B, *shape] [shape]",
    "expectation": "softmax(x) @ atoms, [B], for x [B, K] [atoms]",
    "concat": "all inputs along axis 1",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One operation: names of its inputs (values or weights) and of its result."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrunkInput:
    """dtype and shape per row of an input; integers lie in [low, high]."""

    dtype: str
    shape: tuple[int, ...]
    low: int = 0
    high: int = 1


class Trunk:
    """A list of `Node` in order of execution.

    ``inputs`` are "obs/<key>" and "state"; ``outputs`` "params", "value", "state" map to names of values;
    ``weights`` are the names of the policy's tensors that are used, with their shapes.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        """``tensors``: the policy's parameters and buffers themselves, by their names."""
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self.inputs: dict[str, TrunkInput] = {}
        self.nodes: list[Node] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.outputs: dict[str, str] = {}

    def input(self, name: str, given: TrunkInput) -> str:
        """Declare an input; its name."""
        self.inputs[name] = given
        return name

    def add(self, op: str, *inputs: Any, **attributes: Any) -> str:
        """Append an operation on values (by name) and weights (the tensors themselves); its result."""
        assert op in OPERATIONS, op
        names = tuple(each if isinstance(each, str) else self._weight(each) for each in inputs)
        output = f"v{len(self.nodes)}"
        self.nodes.append(Node(op, names, output, attributes))
        return output

    def concat(self, values: list[str]) -> str:
        """One value along axis 1."""
        return values[0] if len(values) == 1 else self.add("concat", *values)

    def draw(self, num_rows: int, seed: int) -> dict[str, np.ndarray]:
        """Random inputs [num_rows, *shape] of the right dtypes and ranges."""
        generator = np.random.default_rng(seed)
        return {name: _draw(generator, (num_rows, *each.shape), each) for name, each in self.inputs.items()}

    def _weight(self, tensor: Any) -> str:
        name = self._names[id(tensor)]
        self.weights[name] = tuple(tensor.shape)
        return name


def _draw(generator: np.random.Generator, shape: tuple[int, ...], given: TrunkInput) -> np.ndarray:
    if np.dtype(given.dtype).kind == "f":
        return generator.standard_normal(shape).astype(given.dtype)
    return generator.integers(given.low, given.high + 1, shape).astype(given.dtype)
