"""Advantages and value targets. Pure numpy, vectorised over rows, one short loop over time.

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

Array = np.ndarray

#: Larger ratios are clipped anyway, and would overflow.
_MAX_LOG_RATIO = 20.0


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
    delta = np.where(valid, reward + discount * following - value[:-1], 0.0).astype(np.float32)
    keep = _reaches_next(terminated, truncated, valid)
    advantage = _accumulate(delta, np.where(keep, discount * lam, 0.0).astype(np.float32))
    return advantage, np.where(valid, advantage + value[:-1], 0.0).astype(np.float32)


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
    ratio = np.exp(np.minimum(np.where(valid, log_ratio, 0.0), _MAX_LOG_RATIO))
    rho, trace = np.minimum(ratio, rho_clip), lam * np.minimum(ratio, c_clip)
    delta = np.where(valid, rho * (reward + discount * following - value[:-1]), 0.0)
    keep = _reaches_next(terminated, truncated, valid)
    decay = np.where(keep, discount * trace, 0.0)
    excess = _accumulate(delta.astype(np.float32), decay.astype(np.float32))
    target = np.where(valid, excess + value[:-1], 0.0).astype(np.float32)
    after = np.where(keep, np.concatenate([target[1:], target[:1]]), following)
    advantage = np.where(valid, rho * (reward + discount * after - value[:-1]), 0.0)
    return advantage.astype(np.float32), target


def _reaches_next(terminated: Array, truncated: Array, valid: Array) -> Array:
    """bool [T, N]: the next decision is in the same episode, in this batch, and counts."""
    keep = np.zeros_like(valid)
    keep[:-1] = valid[:-1] & valid[1:] & ~(terminated | truncated)[:-1]
    return keep


def _accumulate(delta: Array, decay: Array) -> Array:
    """``y_t = delta_t + decay_t y_{t+1}`` backwards over axis 0, in place of ``delta``."""
    product = np.empty_like(delta[0])
    rows, factors = list(delta), list(decay)
    for step in range(len(rows) - 2, -1, -1):
        np.multiply(factors[step], rows[step + 1], out=product)
        rows[step] += product
    return delta
