"""The promises of the environment contract, one check each: a check yields one text per problem."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy as np

from .checker import Arrays, Checker, compare, equal, only
from .codec import pack, unpack
from .errors import SpecError
from .spec import EnvSpec


def check_spec(c: Checker) -> Iterator[str]:
    """The spec travels and comes back equal."""
    data = unpack([bytes(f) for f in pack(c.spec.to_data())])
    if EnvSpec.from_data(data) != c.spec:
        yield "the spec is another one after it travelled; use plain numbers, strings and lists in it"
    if c.spec.time_limit < 0:
        yield "time_limit is %d; 0 means none" % c.spec.time_limit


def check_data(c: Checker) -> Iterator[str]:
    """Observations, reward, flags and success have the stated dtype, shape and range."""
    obs = c.env.reset(c.rows, c.seeds, [])
    yield from _observation_problems(c.spec, obs, c.num_rows, "reset")
    result = c.env.step(c.rows, c.actions[0], True)
    yield from _observation_problems(c.spec, result.obs or {}, c.num_rows, "step")
    yield from _observation_problems(c.spec, c.env.observe(c.rows), c.num_rows, "observe")
    columns = [("reward", result.reward, "float32"), ("terminated", result.terminated, "bool")]
    columns += [("truncated", result.truncated, "bool")]
    if c.spec.has_success and result.success is not None:
        columns += [("success", result.success, "bool")]
    for name, values, dtype in columns:
        array = np.asarray(values)
        if array.dtype != dtype or array.shape != (c.num_rows,):
            yield "%s is %s %s in step, it must be %s [%d]" % (
                name, array.dtype, list(array.shape), dtype, c.num_rows,
            )  # fmt: skip


def check_success(c: Checker) -> Iterator[str]:
    """Success is given exactly where the spec declares it."""
    c.env.reset(c.rows, c.seeds, [])
    given = c.env.step(c.rows, c.actions[0], True).success is not None
    if given and not c.spec.has_success:
        yield "step gives success, but the spec says has_success = False; declare it"
    if c.spec.has_success and not given:
        yield "the spec says has_success = True, but step gives success = None"


def check_finite(c: Checker) -> Iterator[str]:
    """Rewards and observations are finite and within their range over whole episodes."""
    episode = c.run(c.env, c.rows)
    for t, result in enumerate(episode.steps):
        bad = np.flatnonzero(~np.isfinite(np.asarray(result.reward)))
        if len(bad):
            yield "reward of row %d is %s at step %d; end the episode instead" % (
                bad[0], result.reward[bad[0]], t + 1,
            )  # fmt: skip
            return
        for problem in _range_problems(c.spec, result.obs or {}, "step %d" % (t + 1)):
            yield problem
            return


def check_rotations(c: Checker) -> Iterator[str]:
    """Quaternions and columns of matrices that are observed have length 1 over whole episodes."""
    episode = c.run(c.env, c.rows)
    for t, obs in enumerate([episode.first] + [result.obs or {} for result in episode.steps]):
        # Rows whose episode has ended are zeros.
        running = np.flatnonzero((episode.lengths == 0) | (episode.lengths >= t))
        for key, stated in c.spec.observation.items():
            flat = np.asarray(obs[key])[running].reshape(len(running), -1)
            for each in stated.rotations:
                worst = _not_of_length_one(each.type, flat[:, each.start : each.end])
                if worst is not None:
                    yield "observation %r at step %d: elements %d to %d are no %s: a length is %g, not 1" % (
                        key, t, each.start, each.end - 1, each.type, worst,
                    )  # fmt: skip
                    return


def check_aliasing(c: Checker) -> Iterator[str]:
    """Arrays that were given away do not change at the next step."""
    given = [c.env.reset(c.rows, c.seeds, [])]
    result = c.env.step(c.rows, c.actions[0], True)
    given += [result.obs or {}, dict(zip(("reward", "terminated", "truncated"), result[1:4]))]
    before = [{key: np.array(value) for key, value in arrays.items()} for arrays in given]
    c.env.reset(c.rows, c.seeds + 99, [])
    c.env.step(c.rows, c.actions[-1], True)
    for arrays, old in zip(given, before):
        for key in arrays:
            if not equal(arrays[key], old[key]):
                yield "array %r changed after it was returned; return a copy" % key
                return


def check_repeat(c: Checker) -> Iterator[str]:
    """The same seeds and actions give the same numbers, in a new environment and again in this one."""
    fresh = c.make()
    try:
        first = c.run(fresh, c.rows)
        other = c.make()
        try:
            difference = compare(first, c.run(other, c.rows))
        finally:
            other.close()
        if difference:
            yield (
                "two new environments differ with equal seeds and actions: %s; draw all random "
                "numbers from the seed, or state deterministic = False" % difference
            )
        elif c.spec.seeding != "none":
            difference = compare(first, c.run(fresh, c.rows))
            if difference:
                yield (
                    "an episode differs from the one before it with the same seed: %s; something "
                    "survives reset (a flag, a counter, a buffer)" % difference
                )
    finally:
        fresh.close()


def check_independent(c: Checker) -> Iterator[str]:
    """A row alone gives the same numbers as in the company of others."""
    together = c.run(c.env, c.rows)
    for row in (0, c.num_rows - 1):
        alone = c.run(c.env, c.rows[row : row + 1])
        difference = compare(only(together, row), alone)
        if difference:
            yield (
                "row %d alone differs from row %d in the batch: %s; keep state and random numbers "
                "per row, or state seeding = 'scene'" % (row, row, difference)
            )
            return


def check_late_observe(c: Checker) -> Iterator[str]:
    """Observing after an unobserved step gives what that step would have given."""
    at_once = c.run(c.env, c.rows)
    difference = compare(at_once, c.run(c.env, c.rows, observe=False))
    if difference:
        yield (
            "a late observation differs from the one at once: %s; state late_observe = 'stale' "
            "or 'none'" % difference
        )


def check_no_auto_reset(c: Checker) -> Iterator[str]:
    """At the end of an episode the observation is its last one, and stays so until reset."""
    firsts = _Firsts(c)
    before = c.env.reset(c.rows, c.seeds, [])
    length = np.zeros(c.num_rows, np.int64)
    ends, suspicious = 0, 0
    for t in range(c.steps):
        result = c.env.step(c.rows, c.actions[t], True)
        length += 1
        ended = np.asarray(result.terminated) | np.asarray(result.truncated)
        obs = {key: np.array(value) for key, value in (result.obs or {}).items()}
        counted = ended & (length > 1)
        jumped = firsts.alike(obs) & ~firsts.alike(before)
        ends, suspicious = ends + int(counted.sum()), suspicious + int((counted & jumped).sum())
        if ended.any() and c.spec.late_observe == "exact":
            again = c.env.observe(c.rows)
            changed = [k for k in obs if not equal(again[k][ended], obs[k][ended])]
            if changed:
                yield (
                    "observation %r changed after the end of an episode without a reset: the "
                    "environment resets itself; the hub resets" % changed[0]
                )
                return
        over = ended | (length >= (c.spec.time_limit or c.steps + 1))
        if c.spec.seeding == "scene":
            over[:] = over.any()
        if over.any():
            fresh = c.env.reset(c.rows[over], c.seeds[over] + t, [])
            for key in fresh:
                obs[key][over] = fresh[key]
            length[over] = 0
        before = obs
    if ends >= _MIN_ENDS and suspicious == ends:
        yield (
            "all %d last observations of episodes look like first ones, and those one step before "
            "do not: the environment seems to reset itself; remove auto-reset, the hub resets" % ends
        )


#: Ends of episodes from which a pattern is believed.
_MIN_ENDS = 3


class _Firsts:
    """A sample of first observations, and whether others look like one of them."""

    def __init__(self, c: Checker) -> None:
        sample = [_flat(c.env.reset(c.rows, c.seeds + 1000 * k, [])) for k in range(16)]
        self._known = np.concatenate(sample)
        margin = 0.25 * (self._known.max(0) - self._known.min(0))
        self._low, self._high = self._known.min(0) - margin, self._known.max(0) + margin
        apart = self._distances(self._known)
        np.fill_diagonal(apart, np.inf)
        self._reach = 2 * apart.min(1).max()

    def alike(self, obs: Arrays) -> np.ndarray:
        """bool [R]: in the range of first observations, and as near to one as they are to each other."""
        flat = _flat(obs)
        inside = ((flat >= self._low) & (flat <= self._high)).all(1)
        return inside & (self._distances(flat).min(1) <= self._reach)

    def _distances(self, flat: np.ndarray) -> np.ndarray:
        return np.stack([np.abs(self._known - one).max(1) for one in flat])


def _flat(obs: Arrays) -> np.ndarray:
    """float64 [R, all elements]."""
    parts = [np.asarray(obs[key], np.float64) for key in sorted(obs)]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)


def check_flags(c: Checker) -> Iterator[str]:
    """A new episode does not begin as ended, and own truncation is declared."""
    fresh = c.make()
    try:
        episode, again = c.run(fresh, c.rows), c.run(fresh, c.rows)
    finally:
        fresh.close()
    longest = episode.lengths.max()
    if longest > 1 and (again.lengths == 1).all():
        yield "every episode after the first ends at step 1: a done flag is not cleared by reset"
    if not c.spec.internal_truncation:
        for t, result in enumerate(episode.steps):
            cut = np.asarray(result.truncated) & ~np.asarray(result.terminated)
            if cut.any() and t + 1 != c.spec.time_limit:
                yield (
                    "row %d set truncated at step %d by itself, but the spec says "
                    "internal_truncation = False" % (np.flatnonzero(cut)[0], t + 1)
                )
                return


def check_state(c: Checker) -> Iterator[str]:
    """A state that was saved leads to the same next step once it is put back."""
    c.env.reset(c.rows, c.seeds, [])
    states = c.env.get_state(c.rows)
    if len(states) != c.num_rows or not all(isinstance(s, bytes) for s in states):
        yield "get_state must give one bytes object per row"
        return
    seen = c.env.observe(c.rows)
    result = c.env.step(c.rows, c.actions[0], True)
    restored = c.env.set_state(c.rows, states)
    again = c.env.step(c.rows, c.actions[0], True)
    pairs = [(seen, restored), (result.obs or {}, again.obs or {})]
    if any(not equal(a[k], b[k]) for a, b in pairs for k in a):
        yield "after set_state the observations differ from those when the state was saved"
    if not equal(result.reward, again.reward):
        yield "after set_state the same action gives another reward"


def _offers_state(c: Checker) -> str:
    c.env.reset(c.rows, c.seeds, [])
    try:
        c.env.get_state(c.rows)
    except SpecError:
        return "the environment gives no state"
    return ""


_Check = Tuple[str, Callable[[Checker], Iterator[str]], Callable[[Checker], str]]


def _always(c: Checker) -> str:
    return ""


def _turned(c: Checker) -> str:
    stated = any(array.rotations for array in c.spec.observation.values())
    return "" if stated else "the spec states no rotation in an observation"


def _repeatable(c: Checker) -> str:
    return "" if c.spec.deterministic else "the spec says deterministic = False"


def _per_row(c: Checker) -> str:
    return _repeatable(c) or ("" if c.spec.seeding == "row" else "seeding is %r" % c.spec.seeding)


def _late(c: Checker) -> str:
    if c.spec.late_observe != "exact":
        return "late_observe is %r" % c.spec.late_observe
    return _repeatable(c) or ("" if c.spec.seeding != "none" else "seeding is 'none'")


def _restorable(c: Checker) -> str:
    return _repeatable(c) or _offers_state(c)


CHECKS: List[_Check] = [
    ("spec travels", check_spec, _always),
    ("data is as stated", check_data, _always),
    ("success as declared", check_success, _always),
    ("finite numbers", check_finite, _always),
    ("rotations as stated", check_rotations, _turned),
    ("arrays are given away", check_aliasing, _always),
    ("no reset by itself", check_no_auto_reset, _always),
    ("flags", check_flags, _always),
    ("same seed, same numbers", check_repeat, _repeatable),
    ("rows are independent", check_independent, _per_row),
    ("late observation is exact", check_late_observe, _late),
    ("state can be restored", check_state, _restorable),
]


def _not_of_length_one(type: str, values: np.ndarray) -> Optional[float]:
    """A length in ``values`` [R, size] that should be 1 and is not."""
    if type not in ("quat_xyzw", "quat_wxyz", "matrix", "rot6d"):
        return None
    vectors = values.reshape(len(values), -1, 4 if type.startswith("quat") else 3)
    lengths = np.linalg.norm(vectors, axis=2).ravel()
    wrong = lengths[~(np.abs(lengths - 1) < 1e-3)]
    return float(wrong[0]) if len(wrong) else None


def _observation_problems(spec: EnvSpec, obs: Any, count: int, where: str) -> Iterator[str]:
    if set(obs) != set(spec.observation):
        yield "%s gives observations %s, the spec states %s" % (
            where, sorted(obs), sorted(spec.observation),
        )  # fmt: skip
        return
    for key, stated in spec.observation.items():
        array = np.asarray(obs[key])
        if array.dtype != stated.dtype or array.shape != (count,) + stated.shape:
            yield "observation %r is %s %s in %s, the spec states %s %s" % (
                key, array.dtype, list(array.shape), where, stated.dtype, [count, *stated.shape],
            )  # fmt: skip
    yield from _range_problems(spec, obs, where)


def _range_problems(spec: EnvSpec, obs: Arrays, where: str) -> Iterator[str]:
    for key, stated in spec.observation.items():
        array = np.asarray(obs[key])
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            yield "observation %r is not finite at %s" % (key, where)
        low, high = stated.low, stated.high
        if low is not None and array.size and array.min() < low:
            yield "observation %r is %s at %s, below its low %g" % (key, array.min(), where, low)
        if high is not None and array.size and array.max() > high:
            yield "observation %r is %s at %s, above its high %g" % (key, array.max(), where, high)
