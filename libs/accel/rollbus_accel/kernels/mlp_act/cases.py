"""Cases of mlp_act: both depths, every activation, widths that no block divides, 256 units."""

from __future__ import annotations

import math

import torch
from torch import nn

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.mlp_act import ACTIVATIONS, mlp_act

#: bfloat16 layers round what they get; a last bit of difference before a layer is 2^-8 behind it.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def network(rows: int, *sizes: int, dtype: torch.dtype, activation: str = "tanh") -> Arguments:
    """Random observations [rows, sizes[0]] and layers of the ``sizes``."""
    source = generator(rows * 1000 + sum(sizes))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=source)

    pairs = list(zip(sizes, sizes[1:]))
    return {
        "obs": 3 * normal(rows, sizes[0]) + 1,
        "weights": [(normal(out, size) / math.sqrt(size)).to(dtype) for size, out in pairs],
        "biases": [(0.1 * normal(out)).to(dtype) for _, out in pairs],
        "activation": activation,
        "shift": 1 + 0.1 * normal(sizes[0]),
        "scale": 0.2 + torch.rand(sizes[0], generator=source),
    }


def _sized(rows: int, *sizes: int) -> Case:
    name = f"{rows}x" + "-".join(str(size) for size in sizes)
    return Case(name, lambda dtype: network(rows, *sizes, dtype=dtype))


def _activated(name: str) -> Case:
    return Case(name, lambda dtype: network(5, 4, 20, 12, 3, dtype=dtype, activation=name))


CASES = [
    _sized(1, 1, 1, 1),
    _sized(3, 17, 64, 6),
    _sized(33, 17, 64, 64, 6),
    _sized(2, 5, 256, 256, 1),
    _sized(20, 70, 100, 40, 33),
    *(_activated(name) for name in ACTIVATIONS),
    Case("raw-observations", lambda dtype: _without(network(4, 3, 8, 2, dtype=dtype), "shift", "scale")),
    Case("cut", lambda dtype: network(4, 3, 8, 2, dtype=dtype) | {"clip": 0.5}),
]


def _without(arguments: Arguments, *names: str) -> Arguments:
    return {name: value for name, value in arguments.items() if name not in names}


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: network(4, 3, 8, 5, 2, dtype=dtype) | changed, dtypes=(torch.float32,))


_LAYERS = network(4, 3, 8, 5, 2, dtype=torch.float32)
REFUSED = [
    _refused("observation-of-another-size", obs=torch.zeros(4, 4)),
    _refused("one-layer", weights=_LAYERS["weights"][:1], biases=_LAYERS["biases"][:1]),
    _refused("a-bias-missing", biases=_LAYERS["biases"][:2]),
    _refused("layers-swapped", weights=_LAYERS["weights"][::-1]),
    _refused("a-bias-of-another-dtype", biases=[b.to(torch.bfloat16) for b in _LAYERS["biases"]]),
    _refused("unknown-activation", activation="sine"),
    _refused("a-scale-of-another-size", scale=torch.ones(1)),
    Case("too-wide", lambda dtype: network(2, 3, 257, 2, dtype=dtype), dtypes=(torch.float32,)),
]


def equals_torch_modules() -> None:
    """A policy as rollbus_policies builds it: normalise, cut, linear, tanh, linear, tanh, linear."""
    made = network(9, 11, 64, 64, 4, dtype=torch.float32)
    layers = nn.Sequential(nn.Linear(11, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    for layer, weight, bias in zip(list(layers)[::2], made["weights"], made["biases"]):
        layer.load_state_dict({"weight": weight, "bias": bias})
    with torch.no_grad():
        wanted = layers(((made["obs"] - made["shift"]) * made["scale"]).clamp(-10, 10))
    torch.testing.assert_close(mlp_act(**made), wanted, rtol=2e-5, atol=2e-5)


def by_hand() -> None:
    """relu of (1, -1) times 2 plus 1, summed: only the first unit counts."""
    found = mlp_act(
        torch.tensor([[1.5]]),
        [torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0, 2.0]])],
        [torch.zeros(2), torch.tensor([1.0])],
        "relu",
        shift=torch.tensor([0.5]),
    )
    torch.testing.assert_close(found, torch.tensor([[3.0]]))


def rows_do_not_see_each_other() -> None:
    """A row alone gives what it gives among others."""
    made = network(20, 6, 32, 32, 3, dtype=torch.float32)
    alone = torch.cat([mlp_act(**made | {"obs": row[None]}) for row in made["obs"]])
    torch.testing.assert_close(mlp_act(**made), alone, rtol=1e-6, atol=1e-6)


IDENTITIES = [equals_torch_modules, by_hand, rows_do_not_see_each_other]


def _bench(rows: int, *sizes: int, quick: bool = False) -> Bench:
    num_weights = sum(a * b for a, b in zip(sizes, sizes[1:]))
    return Bench(
        f"{rows}x" + "-".join(str(size) for size in sizes),
        lambda dtype: network(rows, *sizes, dtype=dtype),
        num_bytes=lambda itemsize: 4 * rows * (sizes[0] + sizes[-1]) + num_weights * itemsize,
        num_flops=2 * rows * num_weights,
        quick=quick,
    )


BENCH = [_bench(16384, 64, 256, 256, 16), _bench(64, 17, 64, 64, 6), _bench(256, 17, 64, 64, 6, quick=True)]
