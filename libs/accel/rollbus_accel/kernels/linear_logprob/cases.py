"""Cases of linear_logprob: those of token_logprob behind a layer; sizes that no tile divides."""

from __future__ import annotations

import math

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.linear_logprob import linear_logprob
from rollbus_accel.kernels.token_logprob import token_logprob

TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 2e-2}


def features(rows: int, size: int, num_ids: int, dtype: torch.dtype, *, masked: bool = True) -> Arguments:
    """Random ``hidden`` [rows, size], ``weight`` [num_ids, size] and what belongs to them."""
    source = generator(rows * 1000 + num_ids)
    return {
        "hidden": torch.randn(rows, size, generator=source).to(dtype),
        "weight": (torch.randn(num_ids, size, generator=source) / size**0.5).to(dtype),
        "ids": torch.randint(0, num_ids, (rows,), generator=source),
        "temperature": 0.5 + torch.rand(rows, generator=source),
        "mask": torch.rand(rows, generator=source) < (0.7 if masked else 2.0),
    }


def poison(arguments: Arguments) -> None:
    """NaN in the rows that do not count, and ids that do not exist."""
    unused = ~arguments["mask"]
    arguments["hidden"][unused] = torch.nan
    arguments["temperature"][unused] = torch.nan
    arguments["ids"][unused] = -100


def _sized(rows: int, size: int, num_ids: int) -> Case:
    return Case(
        f"{rows}x{size}x{num_ids}",
        lambda dtype: features(rows, size, num_ids, dtype, masked=rows > 2),
        gradients=("hidden", "weight"),
        poison=poison,
    )


def _all_masked(dtype: torch.dtype) -> Arguments:
    made = features(5, 8, 7, dtype)
    made["mask"][:] = False
    return made


CASES = [_sized(*size) for size in ((1, 1, 2), (5, 7, 11), (33, 16, 129), (70, 40, 300), (3, 5, 1100))]
CASES += [
    Case("all-masked", _all_masked, poison=poison),
    Case("one-temperature", lambda dtype: features(4, 6, 9, dtype) | {"temperature": 0.7, "mask": None}),
    Case("frozen-weight", lambda dtype: features(9, 6, 20, dtype), gradients=("hidden",), poison=poison),
    Case("frozen-features", lambda dtype: features(9, 6, 20, dtype), gradients=("weight",), poison=poison),
]


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: features(4, 6, 9, dtype) | changed, dtypes=(torch.float32,))


REFUSED = [
    _refused("sizes-differ", weight=torch.zeros(9, 5)),
    _refused("dtypes-differ", weight=torch.zeros(9, 6, dtype=torch.bfloat16)),
    _refused("ids-of-another-length", ids=torch.zeros(5, dtype=torch.int64)),
    _refused("mask-of-floats", mask=torch.ones(4)),
    _refused("temperature-below-0", temperature=-1.0),
]


def equals_token_logprob_of_the_logits() -> None:
    """The logits made by hand."""
    made = features(7, 12, 50, torch.float32)
    logits = made.pop("hidden") @ made.pop("weight").T
    wanted = token_logprob(logits, **made)
    found = linear_logprob(**features(7, 12, 50, torch.float32))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def a_weight_of_zeros_is_a_uniform_choice() -> None:
    """log_prob = -log V and entropy = log V; each hidden gradient is 0."""
    hidden = torch.randn(3, 8, generator=generator(1)).requires_grad_()
    log_prob, entropy = linear_logprob(hidden, torch.zeros(150, 8), torch.tensor([0, 64, 149]))
    torch.testing.assert_close(log_prob, torch.full((3,), -math.log(150)))
    torch.testing.assert_close(entropy, torch.full((3,), math.log(150)))
    (log_prob.sum() + entropy.sum()).backward()
    torch.testing.assert_close(hidden.grad, torch.zeros(3, 8))


def probabilities_sum_to_one() -> None:
    """Over all ids, in all tiles."""
    made = features(1, 9, 200, torch.float32, masked=False)
    log_prob, _ = linear_logprob(made["hidden"].expand(200, -1), made["weight"], torch.arange(200), 0.8)
    torch.testing.assert_close(log_prob.exp().sum(), torch.tensor(1.0))


def gradients_of_ids_cancel() -> None:
    """Adding one vector to every id's weight changes nothing, so the weight's gradient sums to 0 over ids."""
    made = features(6, 9, 140, torch.float32)
    weight = made["weight"].requires_grad_()
    log_prob, entropy = linear_logprob(**made)
    (log_prob.sum() + 0.5 * entropy.sum()).backward()
    assert weight.grad is not None and weight.grad.abs().max() > 0.1
    torch.testing.assert_close(weight.grad.sum(0), torch.zeros(9), rtol=0, atol=1e-4)


IDENTITIES = [
    equals_token_logprob_of_the_logits,
    a_weight_of_zeros_is_a_uniform_choice,
    probabilities_sum_to_one,
    gradients_of_ids_cancel,
]


def _bench(rows: int, size: int, num_ids: int, quick: bool = False) -> Bench:
    return Bench(
        f"{rows}x{size}x{num_ids}",
        lambda dtype: features(rows, size, num_ids, dtype, masked=False),
        num_bytes=lambda itemsize: (rows + num_ids) * size * itemsize,
        num_flops=2 * rows * size * num_ids,
        quick=quick,
        gradients=("hidden", "weight"),
    )


BENCH = [_bench(4096, 2048, 32768), _bench(128, 64, 1024, quick=True)]
