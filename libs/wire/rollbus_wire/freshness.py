"""Is what a camera shows of now? Checked beside the environment, where its clock is.

An observation may state ``max_age_s`` (its environment then tells when each frame was taken,
`Env.frame_times`) and ``frozen_after`` (so many equal frames in a row mean that the source is stuck,
whatever its timestamps say).
"""

from __future__ import annotations

import time
import zlib
from typing import Callable

import numpy as np

from .env import Arrays, Env
from .errors import RollbusError


class StaleFrame(RollbusError):
    """A frame is too old, or the same as too many before it."""

    code = "stale-frame"


class Freshness:
    """Judges the observations of ``env`` before anybody sees them; stops the rows that act blindly."""

    def __init__(self, env: Env, clock: Callable[[], float] = time.monotonic) -> None:
        self._env, self._clock = env, clock
        specs = env.spec.observation
        self._limits = {key: spec.max_age_s for key, spec in specs.items() if spec.max_age_s}
        self._repeats = {key: spec.frozen_after for key, spec in specs.items() if spec.frozen_after}
        self._last = {key: np.zeros(env.num_rows, np.uint32) for key in self._repeats}
        #: Equal frames in a row, by key and row.
        self._equal = {key: np.zeros(env.num_rows, np.int64) for key in self._repeats}
        #: Whether anything is to be checked.
        self.needed = bool(self._limits or self._repeats)

    def check(self, rows: np.ndarray, obs: Arrays) -> None:
        """Raise `StaleFrame`, after `Env.stop` of ``rows``, unless all of ``obs`` [R, ...] are fresh."""
        text = self._too_old(rows) or self._frozen(rows, obs)
        if text:
            self._env.stop(rows)
            raise StaleFrame(text)

    def _too_old(self, rows: np.ndarray) -> str:
        if not self._limits:
            return ""
        times, now = self._env.frame_times(rows), self._clock()
        for key, limit in self._limits.items():
            # The next chance to stop comes a period later: that would be too late.
            age = now - np.asarray(times[key], np.float64)
            late = np.flatnonzero(~(age + self._env.spec.control_period_s <= limit))
            if late.size:
                return (
                    "camera %r of row %d shows what was %.3f s ago; at most %.3f s are allowed "
                    "(max_age_s, less one control period): the rows were stopped. Look at the camera and its "
                    "connection" % (key, rows[late[0]], age[late[0]], limit)
                )
        return ""

    def _frozen(self, rows: np.ndarray, obs: Arrays) -> str:
        text = ""
        for key, limit in self._repeats.items():
            digests = np.array([zlib.crc32(frame.tobytes()) for frame in obs[key]], np.uint32)
            equal = self._equal[key]
            equal[rows] = np.where(digests == self._last[key][rows], equal[rows] + 1, 1)
            self._last[key][rows] = digests
            stuck = np.flatnonzero(equal[rows] >= limit)
            if stuck.size:
                text = (
                    "camera %r of row %d has shown the same frame %d times (frozen_after %d) with fresh "
                    "timestamps: the rows were stopped and nothing is recorded. Restart the camera"
                    % (key, rows[stuck[0]], equal[rows][stuck[0]], limit)
                )
        return text
