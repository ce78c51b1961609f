"""The learner's path: one PPO update, minibatches of a batch on the device, kernels against plain torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu.clock import Clock
from gpu.policies import SPECS, observations, policy
from rollbus_accel.kernels import base
from rollbus_accel.kernels.ppo_loss import ppo_loss

#: (samples, minibatch) per policy.
SIZES = {"mlp": (32768, 8192), "cnn": (2048, 512)}
QUICK_SIZES = {"mlp": (512, 256), "cnn": (32, 16)}


@dataclass(frozen=True)
class Learning:
    """One epoch over a batch: gather, forward, loss, backward, clipped fused Adam."""

    policy: str
    samples: int
    minibatch: int
    time_ms: float
    #: With the loss in plain torch.
    reference_ms: float
    samples_per_s: float


def measure(name: str, clock: Clock) -> Learning:
    """Time an epoch of policy ``name``."""
    samples, minibatch = (QUICK_SIZES if clock.quick else SIZES)[name]
    epoch = _epoch(name, samples, minibatch, clock.device)

    def plain() -> None:
        with base.use("reference"):
            epoch()

    seconds = clock.seconds({"ours": epoch, "reference": plain})
    return Learning(
        name, samples, minibatch, 1e3 * seconds["ours"], 1e3 * seconds["reference"], samples / seconds["ours"]
    )


def _epoch(name: str, samples: int, minibatch: int, device: str) -> Callable[[], None]:
    module = policy(name).to(device)
    batch = _batch(name, samples, device)
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-4, fused=True)

    def epoch() -> None:
        for rows in torch.randperm(samples, device=device).split(minibatch):
            part = {key: column.index_select(0, rows) for key, column in batch.items()}
            out = module({"obs/obs": part["obs"], "action": part["action"]}, ("log_prob", "entropy", "value"))
            loss = ppo_loss(
                out["log_prob"], out["value"], out["entropy"], part["log_prob"], part["advantage"],
                part["target"], part["value"], part["valid"], entropy_coef=0.01,
            ).mean()  # fmt: skip
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimiser.step()

    return epoch


def _batch(name: str, samples: int, device: str) -> dict[str, Tensor]:
    torch.manual_seed(1)
    columns = {key: torch.randn(samples) for key in ("log_prob", "advantage", "target", "value")}
    columns["action"] = torch.randn(samples, *SPECS[name].action.shape)
    columns["obs"] = torch.from_numpy(observations(name, samples))
    columns["valid"] = torch.ones(samples, dtype=torch.bool)
    return {key: column.to(device) for key, column in columns.items()}
