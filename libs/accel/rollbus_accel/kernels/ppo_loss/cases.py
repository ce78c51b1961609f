"""Cases of the loss: every switch alone and all together, ratios far off, everything masked."""

from __future__ import annotations

import math

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.ppo_loss import ppo_loss

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}

NUMBERS = ("log_prob", "value", "entropy", "old_log_prob", "advantage", "target", "old_value")
ALL = {
    "clip_low": 0.2,
    "clip_high": 0.28,
    "dual_clip": 3.0,
    "value_clip": 0.3,
    "huber_delta": 0.7,
    "value_coef": 0.7,
    "entropy_coef": 0.01,
}


def samples(
    *shape: int, dtype: torch.dtype, masked: float = 0.2, spread: float = 0.5, **settings: float
) -> Arguments:
    """Random samples whose log-ratios have the deviation ``spread``; the part ``masked`` does not count."""
    source = generator(sum(shape))
    made: Arguments = {name: torch.randn(shape, generator=source) for name in NUMBERS}
    made["log_prob"] = made["old_log_prob"] + spread * made["log_prob"]
    made = {name: x.to(dtype) for name, x in made.items()}
    return made | {"valid": torch.rand(shape, generator=source) >= masked} | settings


def _poison(arguments: Arguments) -> None:
    for name in NUMBERS:
        arguments[name][~arguments["valid"]] = torch.nan


def _case(name: str, *shape: int, masked: float = 0.2, spread: float = 0.5, **settings: float) -> Case:
    def make(dtype: torch.dtype) -> Arguments:
        return samples(*shape, dtype=dtype, masked=masked, spread=spread, **settings)

    return Case(name, make, gradients=("log_prob", "value", "entropy"), poison=_poison)


CASES = [
    _case("one", 1, masked=0.0, **ALL),
    _case("plain", 63),
    _case("dual", 65, dual_clip=1.5, spread=1.0, entropy_coef=0.1),
    _case("value-clip", 7, 9, value_clip=0.2, entropy_coef=0.1),
    _case("huber", 50, huber_delta=0.5, entropy_coef=0.1),
    _case("all", 37, 3, spread=1.0, **ALL),
    _case("long", 1500, **ALL),
    _case("far-ratios", 64, spread=30.0, dual_clip=2.0, entropy_coef=0.1),
]
CASES.append(Case("all-masked", lambda dtype: samples(9, dtype=dtype, masked=1.1), poison=_poison))


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: samples(4, dtype=dtype) | changed)


REFUSED = [
    _refused(valid=torch.ones(4, 1, dtype=torch.bool)),
    _refused(valid=torch.ones(4)),
    _refused(value=torch.ones(4, 1)),
    _refused(advantage=torch.ones(4, dtype=torch.int64)),
]


def _column(**changed: list[float]) -> Arguments:
    num = len(next(iter(changed.values())))
    made = {name: torch.tensor(changed.get(name, [0.0] * num)) for name in NUMBERS}
    return made | {"valid": torch.ones(num, dtype=torch.bool)}


def surrogate_by_hand() -> None:
    """Ratios 1.5, 1.5, 0.5, 0.5, 4 with advantages 1, -1, 1, -1, -1; clip 0.2, dual clip 3."""
    ratios = [1.5, 1.5, 0.5, 0.5, 4.0]
    made = _column(log_prob=[math.log(r) for r in ratios], advantage=[1.0, -1.0, 1.0, -1.0, -1.0])
    made["log_prob"].requires_grad_()
    loss = ppo_loss(**made, dual_clip=3.0)
    torch.testing.assert_close(loss.policy_loss.detach(), torch.tensor(-1.2 + 1.5 - 0.5 + 0.8 + 3.0))
    assert float(loss.clip_fraction) == 5.0 and int(loss.num_valid) == 5
    wanted = sum(r - 1.0 - math.log(r) for r in ratios)
    torch.testing.assert_close(loss.approx_kl, torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    (slope,) = torch.autograd.grad(loss.policy_loss, made["log_prob"])
    torch.testing.assert_close(slope, torch.tensor([0.0, 1.5, -0.5, 0.0, 0.0]))


def value_loss_by_hand() -> None:
    """Errors 0.5 and 3 at delta 1: 0.25 and 5. Held within 0.1 of 0, values 0.5 and 3 are 0.1 from there."""
    made = _column(value=[0.5, 3.0])
    torch.testing.assert_close(
        ppo_loss(**made, huber_delta=1.0, value_coef=2.0).value_loss, torch.tensor(10.5)
    )
    held = _column(value=[0.5, 3.0], target=[1.0, 2.9])
    loss = ppo_loss(**held, value_clip=0.1, value_coef=1.0)
    torch.testing.assert_close(loss.value_loss, torch.tensor(0.9**2 + 2.8**2))


def at_the_old_policy_the_gradient_is_the_policy_gradient() -> None:
    """Ratio 1: the loss is -A, its slope in the log-prob is -A, nothing is clipped, KL is 0."""
    made = samples(40, dtype=torch.float32, masked=0.0)
    made["log_prob"] = made["old_log_prob"].clone().requires_grad_()
    loss = ppo_loss(**made, entropy_coef=0.5)
    (slope,) = torch.autograd.grad(loss.policy_loss, made["log_prob"])
    torch.testing.assert_close(slope, -made["advantage"])
    torch.testing.assert_close(loss.policy_loss, -made["advantage"].sum(), rtol=1e-5, atol=1e-5)
    assert (
        not loss.clip_fraction.requires_grad
        and float(loss.clip_fraction) == 0.0
        and abs(float(loss.approx_kl)) < 1e-5
    )
    torch.testing.assert_close(loss.entropy_loss, -0.5 * loss.entropy)


IDENTITIES = [surrogate_by_hand, value_loss_by_hand, at_the_old_policy_the_gradient_is_the_policy_gradient]


def _bench(num: int, quick: bool = False) -> Bench:
    return Bench(
        str(num),
        lambda dtype: samples(num, dtype=dtype, **ALL),
        num_bytes=lambda itemsize: num * (9 * itemsize + 1),
        quick=quick,
    )


BENCH = [_bench(1 << 23), _bench(1 << 14, quick=True)]
