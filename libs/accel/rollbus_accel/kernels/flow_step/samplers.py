"""How one step of a flow policy goes from noise (t = 1) to action (t = 0): weights and noise per row.

With velocity v, ``x_data = x - v t`` and ``x_noise = x + v (1 - t)``; the next x has the mean
``data x_data + noise x_noise`` and the deviation ``std``. Functions take float tensors [B] of ``time`` t and
``dt`` and give float32.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    """Of one step, [B] each; ``std`` may be [B, D]."""

    data: Tensor
    noise: Tensor
    std: Tensor


def ode(time: Tensor, dt: Tensor) -> Weights:
    """Euler's step, without noise."""
    after = (time - dt).float()
    return Weights(1.0 - after, after, torch.zeros_like(after))


def sde(time: Tensor, dt: Tensor, noise_level: float = 0.5) -> Weights:
    """Flow-SDE (pi_RL, 2510.25889): the same marginals as the ODE, with noise.

    ``s = noise_level sqrt(t / (1 - t))``, at t = 1 that of the next t; std = s sqrt(dt).
    """
    time, dt = time.float(), dt.float()
    after = time - dt
    inner = torch.where(time < 1.0, time, after)
    variance = noise_level**2 * inner / (1.0 - inner)
    return Weights(1.0 - after, after - variance * dt / (2.0 * time), (variance * dt).sqrt())


def cps(time: Tensor, dt: Tensor, noise_level: float = 0.5) -> Weights:
    """Flow-CPS (2509.05952): as much noise as is taken away."""
    after, angle = (time - dt).float(), 0.5 * math.pi * noise_level
    return Weights(1.0 - after, after * math.cos(angle), after * math.sin(angle))


def learned(time: Tensor, dt: Tensor, std: Tensor) -> Weights:
    """Flow-noise (pi_RL): Euler's mean with a deviation [B] or [B, D] that a network gives."""
    return ode(time, dt)._replace(std=std)
