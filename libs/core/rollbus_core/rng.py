"""Counter-based random numbers: a function of (seed, episode, step), never of call order.

A row's noise therefore does not depend on its neighbours in a batch, on the actor that computed
it, or on how often something was retried. The mixer is SplitMix64 (Steele, Lea, Flood 2014,
"Fast splittable pseudorandom number generators").
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_S27, _S30, _S31, _S11 = (np.uint64(n) for n in (27, 30, 31, 11))


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of uint64, of an array of them."""
    mixed = values ^ (values >> _S30)
    mixed *= _MIX_1
    mixed ^= mixed >> _S27
    mixed *= _MIX_2
    mixed ^= mixed >> _S31
    return mixed


@functools.cache
def stream(seed: int, name: str) -> np.uint64:
    """The key of the stream ``name`` under ``seed``; distinct names give unrelated streams."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=str(seed).encode()).digest()
    return np.uint64(int.from_bytes(digest, "little"))


def decision_seeds(key: np.uint64, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """uint64 [B], one seed per (episode [B], step [B])."""
    return step_seeds(episode_keys(key, episode), step)


def episode_keys(key: np.uint64, episode: np.ndarray) -> np.ndarray:
    """uint64 [B]: the part of `decision_seeds` that stays for the whole episode."""
    return mix(np.asarray(episode).astype(np.uint64) * _GOLDEN + key)


def step_seeds(keys: np.ndarray, step: np.ndarray) -> np.ndarray:
    """uint64 [B]: `decision_seeds` from `episode_keys` [B]."""
    seeds = np.asarray(step).astype(np.uint64)
    seeds *= _GOLDEN
    seeds += keys
    return mix(seeds)


@functools.cache
def _counters(num: int) -> np.ndarray:
    return np.arange(1, num + 1, dtype=np.uint64) * _GOLDEN


def uniform(seeds: np.ndarray, num: int) -> np.ndarray:
    """float64 [B, num] in [0, 1), row i a function of ``seeds[i]`` alone."""
    bits = mix(seeds[:, None] + _counters(num))
    bits >>= _S11
    return bits * (1.0 / (1 << 53))


def skip(seeds: np.ndarray, num: np.ndarray) -> np.ndarray:
    """uint64 [B]: seeds whose `uniform` begins behind the first ``num`` [B] numbers of ``seeds`` [B]."""
    behind: np.ndarray = seeds + num.astype(np.uint64) * _GOLDEN
    return behind


def normal(seeds: np.ndarray, num: int) -> np.ndarray:
    """float32 [B, num], standard normal by Box and Muller (1958)."""
    half = -(-num // 2)
    u = uniform(seeds, 2 * half)
    radius = np.sqrt(-2.0 * np.log(1.0 - u[:, :half]))
    angle = (2.0 * np.pi) * u[:, half:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return both[:, :num].astype(np.float32)


def _mix_one(value: int) -> int:
    """`mix` of one number."""
    value = ((value ^ (value >> 30)) * int(_MIX_1)) & _MASK
    value = ((value ^ (value >> 27)) * int(_MIX_2)) & _MASK
    return value ^ (value >> 31)


def episode_id(incarnation: int, row: int, number: int) -> int:
    """int64: the ``number``-th episode of global ``row`` under the hub's ``incarnation``."""
    return incarnation << 48 | row << 28 | number


def episode_seed(seed: int, episode: int, *, evaluation: bool) -> int:
    """The seed that an environment's reset gets; evaluation and training never share one."""
    key = int(stream(seed, "evaluation" if evaluation else "training"))
    # `decision_seeds` of step 0, for one episode: arrays would cost ten times as much.
    bits = _mix_one(_mix_one((episode * int(_GOLDEN) + key) & _MASK)) & 0x7FFFFFFF
    return bits | 0x80000000 if evaluation else bits
