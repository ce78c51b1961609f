"""Forward passes of one fixed size, so that a row's result does not depend on who else is there.

Evaluation uses this: results must not change with the number of environments that run at once. That
a row is independent of its neighbours and its place is proved at the start on the real engine; where
it is not so, each row has a pass of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollbus_actor.acts import joined, rows_of
from rollbus_actor.engines.base import Forward, InferenceEngine
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.spec import ArraySpec, EnvSpec


class FixedBatch:
    """An engine whose passes all have ``size`` rows, or 1 if `prove` has failed."""

    def __init__(self, engine: InferenceEngine, size: int, policy: PolicySpec) -> None:
        self.engine, self.size = engine, size
        self._policy = policy
        #: None: not proved yet.
        self.independent: bool | None = None

    @property
    def version(self) -> Version | None:
        """The engine's."""
        return self.engine.version

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """The engine's; what was proved does not hold for other weights."""
        self.engine.set_weights(version, tensors)
        self.independent = None

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows in passes of the fixed size."""
        size = self.size if self.independent else 1
        passes = []
        for start in range(0, len(seeds), size):
            part = slice(start, min(start + size, len(seeds)))
            rows = np.arange(part.start, part.stop)
            padded = np.concatenate([rows, np.full(size - rows.size, rows[0])])
            passes.append((self._pass(obs, state, _mode(ask, padded), seeds, padded), rows.size))
        acts = [rows_of(forward.act, slice(num)) for forward, num in passes]
        return Forward(joined(acts), passes[0][0].version)

    def prove(self, spec: EnvSpec, ask: Ask) -> bool:
        """Whether the same row gives the same bits among other neighbours and at other places."""
        generator = np.random.default_rng(0)
        many = 2 * self.size
        obs = {key: self._draw(generator, item, many) for key, item in spec.observation.items()}
        state = None
        if self._policy.state == "hub":
            state = generator.standard_normal((many, self._policy.state_size)).astype(np.float32)
        seeds = generator.integers(0, 1 << 63, many).astype(np.uint64)
        first = np.arange(self.size)
        ask = replace(ask, held=None)
        plain = self._pass(obs, state, ask, seeds, first).act
        self.independent = True
        for order in (first[::-1], np.roll(first, 1), generator.permutation(self.size)):
            moved = self._pass(obs, state, ask, seeds, order).act
            self.independent &= _equal(rows_of(plain, order), moved)
        for place in {0, self.size // 2, self.size - 1}:
            others = first + self.size
            others[place] = place
            among = self._pass(obs, state, ask, seeds, others).act
            alike = _equal(rows_of(plain, slice(place, place + 1)), rows_of(among, slice(place, place + 1)))
            self.independent &= alike
        return self.independent

    def _pass(self, obs: Any, state: Any, ask: Ask, seeds: np.ndarray, rows: np.ndarray) -> Forward:
        chosen = {key: value[rows] for key, value in obs.items()}
        return self.engine.act(chosen, None if state is None else state[rows], ask, seeds[rows])

    def _draw(self, generator: np.random.Generator, item: ArraySpec, num: int) -> np.ndarray:
        """Observations within the bounds of ``item``, [num, (K,) ...]."""
        frames = self._policy.frame_stack
        stack = (frames,) if frames > 1 else ()
        shape, dtype = (num, *stack, *item.shape), np.dtype(item.dtype)
        if dtype.kind == "b":
            return generator.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            low = 0 if item.low is None else int(item.low)
            high = min(limits.max, 255) if item.high is None else int(item.high)
            return generator.integers(max(low, limits.min), min(high, limits.max) + 1, shape).astype(dtype)
        value = generator.standard_normal(shape)
        return np.clip(value, item.low, item.high).astype(dtype)


def _mode(ask: Ask, rows: np.ndarray) -> Ask:
    mode = ask.mode if isinstance(ask.mode, str) else [ask.mode[row] for row in rows]
    return replace(ask, mode=mode, held=None if ask.held is None else ask.held[rows])


def _arrays(act: Act) -> dict[str, np.ndarray]:
    arrays = {"env_action": act.env_action, "action": act.action, **act.extras}
    return arrays if act.state is None else arrays | {"state": act.state}


def _equal(a: Act, b: Act) -> bool:
    others = _arrays(b)
    return all(value.tobytes() == others[name].tobytes() for name, value in _arrays(a).items())
