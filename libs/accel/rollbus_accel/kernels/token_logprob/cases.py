"""Cases of token_logprob: vocabularies of one id and of odd sizes, excluded ids, masked rows."""

from __future__ import annotations

import math

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.token_logprob import token_logprob

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def scores(rows: int, num_ids: int, dtype: torch.dtype, *, masked: bool = True) -> Arguments:
    """Random logits [rows, num_ids] and what belongs to them."""
    source = generator(rows * 1000 + num_ids)
    return {
        "logits": (3 * torch.randn(rows, num_ids, generator=source)).to(dtype),
        "ids": torch.randint(0, num_ids, (rows,), generator=source),
        "temperature": 0.5 + torch.rand(rows, generator=source),
        "mask": torch.rand(rows, generator=source) < (0.7 if masked else 2.0),
    }


def poison(arguments: Arguments) -> None:
    """NaN in the rows that do not count, and ids that do not exist."""
    unused = ~arguments["mask"]
    arguments["logits"][unused] = torch.nan
    arguments["temperature"][unused] = torch.nan
    arguments["ids"][unused] = -100


def _sized(rows: int, num_ids: int) -> Case:
    return Case(
        f"{rows}x{num_ids}",
        lambda dtype: scores(rows, num_ids, dtype, masked=rows > 2),
        gradients=("logits",) if num_ids > 1 else (),
        poison=poison,
    )


def _all_masked(dtype: torch.dtype) -> Arguments:
    made = scores(5, 7, dtype)
    made["mask"][:] = False
    return made


def _excluded(dtype: torch.dtype) -> Arguments:
    """Half of the ids cannot be taken; in the first row all but one."""
    made = scores(6, 33, dtype, masked=False)
    made["logits"][:, ::2] = -torch.inf
    made["logits"][0, 2:] = -torch.inf
    made["ids"][:] = 1
    return made


CASES = [_sized(*size) for size in ((1, 1), (1, 2), (33, 6), (5, 65), (3, 1000), (2, 5003))]
CASES += [
    Case("all-masked", _all_masked, poison=poison),
    Case("excluded", _excluded, gradients=("logits",)),
    Case("plain", lambda dtype: {k: v for k, v in scores(4, 9, dtype).items() if k in ("logits", "ids")}),
]


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: scores(4, 3, dtype) | changed, dtypes=(torch.float32,))


REFUSED = [
    _refused("ids-of-another-length", ids=torch.zeros(5, dtype=torch.int64)),
    _refused("ids-in-a-column", ids=torch.zeros(4, 1, dtype=torch.int64)),
    _refused("int32-ids", ids=torch.zeros(4, dtype=torch.int32)),
    _refused("mask-of-floats", mask=torch.ones(4)),
    _refused("logits-of-integers", logits=torch.zeros(4, 3, dtype=torch.int64)),
    _refused("logits-of-three-dimensions", logits=torch.zeros(4, 3, 1)),
    _refused("temperature-0", temperature=0.0),
    _refused("one-temperature-too-many", temperature=torch.ones(5)),
]


def equal_logits_are_a_uniform_choice() -> None:
    """log_prob = -log V and entropy = log V, whatever the temperature."""
    log_prob, entropy = token_logprob(torch.full((3, 50), 7.0), torch.tensor([0, 1, 49]), 0.3)
    torch.testing.assert_close(log_prob, torch.full((3,), -math.log(50)))
    torch.testing.assert_close(entropy, torch.full((3,), math.log(50)))


def probabilities_sum_to_one() -> None:
    """Over all ids of a row."""
    logits = scores(1, 37, torch.float32)["logits"].expand(37, -1)
    log_prob, entropy = token_logprob(logits, torch.arange(37), 0.7)
    torch.testing.assert_close(log_prob.exp().sum(), torch.tensor(1.0))
    torch.testing.assert_close(entropy[0], -(log_prob.exp() * log_prob).sum())


def large_logits_do_not_overflow() -> None:
    """Adding a constant to a row changes nothing."""
    made = scores(4, 11, torch.float32, masked=False)
    near = token_logprob(**made)
    far = token_logprob(**made | {"logits": made["logits"] + 1e4})
    torch.testing.assert_close(far[0], near[0], rtol=0, atol=5e-3)


def two_ids_by_hand() -> None:
    """Logits 0 and log 3 at temperature 1: probabilities 1/4 and 3/4."""
    log_prob, entropy = token_logprob(torch.tensor([[0.0, math.log(3.0)]]), torch.tensor([1]))
    torch.testing.assert_close(log_prob, torch.tensor([math.log(0.75)]))
    torch.testing.assert_close(entropy, torch.tensor([-0.75 * math.log(0.75) - 0.25 * math.log(0.25)]))


IDENTITIES = [
    equal_logits_are_a_uniform_choice,
    probabilities_sum_to_one,
    large_logits_do_not_overflow,
    two_ids_by_hand,
]


def _bench(rows: int, num_ids: int, quick: bool = False) -> Bench:
    size = rows * num_ids
    return Bench(
        f"{rows}x{num_ids}",
        lambda dtype: scores(rows, num_ids, dtype),
        num_bytes=lambda itemsize: size * itemsize,
        quick=quick,
        gradients=("logits",),
    )


BENCH = [_bench(4096, 32768), _bench(65536, 16), _bench(256, 1024, quick=True)]
