"""Cases of group normalisation: groups of one, of none, of equal scores."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.group_normalise import group_normalise

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5}


def groups(num_groups: int, num_members: int, dtype: torch.dtype, scale: bool = True) -> Arguments:
    """Random scores; the first group does not count, the second has equal scores, a tenth is masked."""
    source = generator(num_groups + num_members)
    score = 3.0 + 2.0 * torch.randn(num_groups, num_members, generator=source)
    score[1:2] = 0.1
    valid = torch.rand(num_groups, num_members, generator=source) < 0.9
    valid[:1] = False
    return {"score": score.to(dtype), "valid": valid, "scale": scale}


def _poison(arguments: Arguments) -> None:
    arguments["score"][~arguments["valid"]] = torch.nan


def _sized(num_groups: int, num_members: int, scale: bool = True) -> Case:
    name = f"{num_groups}x{num_members}" + ("" if scale else "-unscaled")
    return Case(name, lambda dtype: groups(num_groups, num_members, dtype, scale), poison=_poison)


CASES = [_sized(1, 1), _sized(5, 1), _sized(9, 8), _sized(37, 5, scale=False), _sized(3, 2500)]


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: groups(4, 3, dtype) | changed)


REFUSED = [
    _refused(valid=torch.ones(4, 1, dtype=torch.bool)),
    _refused(valid=torch.ones(4, 3)),
    _refused(score=torch.zeros(4, 3, dtype=torch.int64)),
    _refused(score=torch.zeros(4), valid=torch.ones(4, dtype=torch.bool)),
]


def a_group_has_mean_zero_and_deviation_one() -> None:
    """With the divisor n - 1."""
    score = torch.randn(20, 16, generator=generator(0)) * 50.0 + 7.0
    result = group_normalise(score, torch.ones(20, 16, dtype=torch.bool))
    torch.testing.assert_close(result.mean(1), torch.zeros(20), rtol=0, atol=1e-5)
    torch.testing.assert_close(result.std(1), torch.ones(20), rtol=1e-5, atol=0)


def by_hand() -> None:
    """Scores 1, 2, 3 and one that does not count: the deviation is 1. Groups of one and of equals give 0."""
    score = torch.tensor(
        [[1.0, 2.0, 3.0, 99.0], [5.0, 0.0, 0.0, 0.0], [0.3, 0.3, 0.3, 0.3], [0.0, 1e6, 0.0, 1e6]]
    )
    valid = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
    zeros = [0.0] * 4
    half = 0.5**0.5
    wanted = torch.tensor([[-1.0, 0.0, 1.0, 0.0], zeros, zeros, [-half, half, 0.0, 0.0]])
    torch.testing.assert_close(group_normalise(score, valid), wanted, rtol=1e-5, atol=1e-6)
    wanted = torch.tensor([[-1.0, 0.0, 1.0, 0.0], zeros, zeros, [-5e5, 5e5, 0.0, 0.0]])
    torch.testing.assert_close(group_normalise(score, valid, scale=False), wanted, rtol=1e-5, atol=1e-6)


IDENTITIES = [a_group_has_mean_zero_and_deviation_one, by_hand]


def _bench(num_groups: int, num_members: int, quick: bool = False) -> Bench:
    size = num_groups * num_members
    return Bench(
        f"{num_groups}x{num_members}",
        lambda dtype: groups(num_groups, num_members, dtype),
        num_bytes=lambda itemsize: size * (itemsize + 1 + 4),
        dtypes=(torch.float32,),
        quick=quick,
    )


BENCH = [_bench(262144, 16), _bench(4096, 8, quick=True)]
