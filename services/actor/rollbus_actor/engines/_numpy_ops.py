"""A policy's trunk in numpy alone.

This file is also copied into the models that an inference server runs (`_triton_repository`), so it imports
nothing else, and works with Python 3.8 and numpy 1.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

Values = Dict[str, np.ndarray]
#: (operation, names of inputs, name of the result, attributes), see rollbus_policies.trunk.
Node = Tuple[str, Sequence[str], str, Mapping[str, Any]]


class Plan:
    """A trunk with its weights looked up: matrices are transposed once, as views, so that weights may
    change in place."""

    def __init__(
        self, nodes: Sequence[Node], outputs: Mapping[str, str], weights: Mapping[str, np.ndarray]
    ) -> None:
        self._outputs, self._weights = dict(outputs), weights
        self._uses = Counter([name for node in nodes for name in node[1]] + list(outputs.values()))
        self._steps = [self._step(*node) for node in nodes]

    def run(self, inputs: Mapping[str, np.ndarray]) -> Values:
        """All outputs of the trunk for ``inputs`` "obs/<key>" and "state"."""
        values = dict(inputs)
        for name, compute in self._steps:
            values[name] = compute(values)
        return {name: values[value] for name, value in self._outputs.items()}

    def _step(
        self, op: str, inputs: Sequence[str], output: str, attributes: Mapping[str, Any]
    ) -> Tuple[str, Callable[[Values], np.ndarray]]:
        weights = [self._weights[name] for name in inputs if name in self._weights]
        names = [name for name in inputs if name not in self._weights]
        compute = OPERATIONS[op](*weights, **attributes)
        if len(names) == 1:
            (name,) = names
            if op in OVERWRITING and self._uses[name] > 1:
                return output, lambda values: compute(values[name].copy())
            return output, lambda values: compute(values[name])
        return output, lambda values: compute(*[values[name] for name in names])


def missing(operations: Sequence[str]) -> List[str]:
    """Those of ``operations`` that are not here."""
    return sorted(set(operations) - set(OPERATIONS))


def _linear(weight: np.ndarray, bias: np.ndarray) -> Callable[..., np.ndarray]:
    transposed = weight.T

    def compute(x: np.ndarray) -> np.ndarray:
        y = x @ transposed
        y += bias
        return y

    return compute


def _conv(weight: np.ndarray, bias: np.ndarray, *, stride: int, padding: int) -> Callable[..., np.ndarray]:
    num_out, kernel = weight.shape[0], weight.shape[2]
    matrix = weight.reshape(num_out, -1).T

    def compute(x: np.ndarray) -> np.ndarray:
        if padding:
            x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), (2, 3))
        windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)
        rows, height, width = windows.shape[:3]
        y = windows.reshape(rows * height * width, -1) @ matrix
        y += bias
        return y.reshape(rows, height, width, num_out).transpose(0, 3, 1, 2)

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


def _lstm(
    w_ih: np.ndarray, w_hh: np.ndarray, b_ih: np.ndarray, b_hh: np.ndarray
) -> Callable[..., np.ndarray]:
    inputs, hidden, size = _linear(w_ih, b_ih), _linear(w_hh, b_hh), w_hh.shape[1]

    def compute(x: np.ndarray, state: np.ndarray) -> np.ndarray:
        gates = inputs(x)
        gates += hidden(state[:, :size])
        take, keep, new, give = (gates[:, i * size : (i + 1) * size] for i in range(4))
        cells = _sigmoid(keep) * state[:, size:] + _sigmoid(take) * np.tanh(new)
        return np.concatenate([_sigmoid(give) * np.tanh(cells), cells], 1)

    return compute


def _max_pool(*, size: int, stride: int, padding: int) -> Callable[..., np.ndarray]:
    def compute(x: np.ndarray) -> np.ndarray:
        around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        x = np.pad(x, around, constant_values=-np.inf)
        height, width = x.shape[2] - size + 1, x.shape[3] - size + 1
        shifted = [
            x[:, :, i : i + height : stride, j : j + width : stride] for i in range(size) for j in range(size)
        ]
        y = shifted[0].copy()
        for other in shifted[1:]:
            np.maximum(y, other, out=y)
        return y

    return compute


def _normalise(shift: np.ndarray, scale: np.ndarray, *, clip: float) -> Callable[..., np.ndarray]:
    return lambda x: np.clip((x - shift) * scale, np.float32(-clip), np.float32(clip))


def _one_hot(*, low: int, num: int) -> Callable[..., np.ndarray]:
    rows = np.eye(num, dtype=np.float32)
    return lambda x: rows[x - low]


def _expectation(*, atoms: Sequence[float]) -> Callable[..., np.ndarray]:
    column = np.asarray(atoms, np.float32)

    def compute(x: np.ndarray) -> np.ndarray:
        weight = np.exp(x - x.max(1, keepdims=True))
        return (weight @ column) / weight.sum(1)

    return compute


def _elu(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


OVERWRITING = ("tanh", "relu")
#: Operation -> function of (weights, attributes) that makes the function of the values.
OPERATIONS: Dict[str, Callable[..., Callable[..., np.ndarray]]] = {
    "linear": _linear,
    "conv": _conv,
    "gru": _gru,
    "lstm": _lstm,
    "max_pool": _max_pool,
    "normalise": _normalise,
    "one_hot": _one_hot,
    # Activations overwrite what nobody else reads (`Plan`).
    "tanh": lambda: lambda x: np.tanh(x, out=x),
    "relu": lambda: lambda x: np.maximum(x, np.float32(0), out=x),
    "elu": lambda: _elu,
    "silu": lambda: lambda x: x * _sigmoid(x),
    "float": lambda: lambda x: x.astype(np.float32),
    "multiply": lambda factor: lambda x: x * np.float32(factor),
    "permute": lambda axes: lambda x: x.transpose(axes),
    "reshape": lambda shape: lambda x: x.reshape(-1, *shape),
    "add": lambda: lambda x, y: x + y,
    "expectation": _expectation,
    "columns": lambda end: lambda x: x[:, :end],
    "concat": lambda: lambda *x: np.concatenate(x, 1),
}
