"""Advantages and value targets of a batch; the loops over time are kernels.

Symbols: T decisions, N rows, C environment steps per decision; ``done = terminated or truncated``.

Two masks, because they do different things: what follows a decision is worth nothing if it
``terminated`` (bootstrap with 1 - terminated), and advantages of one episode never reach another
(recurse with 1 - done). At an end the next value is that of the final observation, since after a reset
``value[t + 1]`` belongs to the next episode. ``terminated and truncated`` counts as terminated.

``valid`` marks the decisions that count: False beyond a row's length and where infrastructure was lost
(``interrupted``). Nothing crosses an invalid decision, and its numbers, NaN included, reach no other.
"""

from __future__ import annotations

import numpy as np
import torch

from rollbus_accel.kernels import gae as kernels_gae
from rollbus_accel.kernels import vtrace as kernels_vtrace

Array = np.ndarray


def decision_reward(reward: Array, num_steps: Array, gamma: float) -> Array:
    """``sum_{k < n} gamma^k r_k``, float32 [T, N], of ``reward`` [T, N, C] and ``num_steps`` n [T, N]."""
    if reward.shape[-1] == 1:
        return np.where(num_steps > 0, reward[..., 0], 0.0).astype(np.float32, copy=False)
    place = np.arange(reward.shape[-1])
    executed = np.where(place < num_steps[..., None], reward, 0.0)
    return (executed @ (gamma**place)).astype(np.float32)


def decision_discount(num_steps: Array, gamma: float) -> Array:
    """``gamma^n``, float32 [T, N]: the discount over the environment steps of each decision."""
    return np.power(np.float32(gamma), num_steps.astype(np.float32))


def next_values(value: Array, final_value: Array, terminated: Array, truncated: Array) -> Array:
    """Value of what follows each decision, [T, N]; 0 where it terminated.

    ``value`` [T+1, N] of every observation, ``final_value`` [T, N] of the final observation where the
    episode ended (anything elsewhere).
    """
    following = np.where(truncated, final_value, value[1:])
    return np.where(terminated, 0.0, following)


def gae(
    *,
    reward: Array,
    discount: Array,
    value: Array,
    final_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    lam: float,
) -> tuple[Array, Array]:
    """Generalised advantage estimation (Schulman et al., 1506.02438): (advantage, target), float32 [T, N].

    ``reward`` and ``discount`` [T, N] per decision, ``value`` [T+1, N], ``final_value`` [T, N], ``lam``
    once per decision. ``target`` is advantage + value. Both are 0 where not ``valid``.
    """
    following = next_values(value, final_value, terminated, truncated)
    done = terminated | truncated
    return _arrays(
        kernels_gae.gae(
            _tensor(reward), _tensor(discount), _tensor(value[:-1]), _tensor(following),
            _tensor(terminated), _tensor(done), _tensor(valid), lam,
        )
    )  # fmt: skip


def vtrace(
    *,
    reward: Array,
    discount: Array,
    value: Array,
    final_value: Array,
    terminated: Array,
    truncated: Array,
    valid: Array,
    log_ratio: Array,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace (Espeholt et al., 1802.01561): (advantage, target vs), float32 [T, N].

    ``log_ratio`` [T, N] is learner minus behaviour log-prob; the rest as in `gae`. The advantage
    bootstraps from vs of the next decision, and from its value where there is none.
    """
    following = next_values(value, final_value, terminated, truncated)
    done = terminated | truncated
    return _arrays(
        kernels_vtrace.vtrace(
            _tensor(log_ratio), _tensor(reward), _tensor(discount), _tensor(value[:-1]), _tensor(following),
            _tensor(terminated), _tensor(done), _tensor(valid), lam, rho_clip, c_clip,
        )
    )  # fmt: skip


def _tensor(column: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(column))


def _arrays(found: tuple[torch.Tensor, torch.Tensor]) -> tuple[Array, Array]:
    return found[0].numpy(), found[1].numpy()
