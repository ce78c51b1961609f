"""What each row's episode began with: drawn once per seed, recorded at its end, kept over a restart."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollbus_core.lines import LineFile
from rollbus_simulator.episodes import Ended
from rollbus_simulator.options.base import OptionSource, Result, Start

#: What a source has learned from outcomes is written this often; a hub that is killed loses no more.
SAVE_EVERY_S = 1.0


class Starts:
    """The options of a hub's episodes.

    Rows that begin with one seed begin alike, also where a member of a group that was lost begins again
    after the source has moved on. ``record``: a line per episode that ended. ``kept``: where the state of a
    source that adapts is; ``settings`` are its own, a state of others is not taken.
    """

    def __init__(
        self, source: OptionSource, settings: dict[str, Any] | None = None, *, record: Path | None = None,
        kept: Path | None = None, restore: bool = True, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.source, self._settings, self._clock = source, settings or {}, clock
        self._rows: dict[int, int] = {}
        self._of_seed: dict[int, Start] = {}
        self._users: Counter[int] = Counter()
        self._lines = LineFile(record) if record is not None else None
        self._kept, self._save_at = kept if source.adapts else None, 0.0
        if restore and self._kept is not None and self._kept.exists():
            self._restore(self._kept)

    def begin(self, row: int, seed: int) -> dict[str, Any]:
        """Options of the episode with ``seed`` that begins in the hub's ``row``."""
        before = self._rows.get(row)
        if before != seed:
            self._rows[row] = seed
            self._users[seed] += 1
            if before is not None:
                self._leave(before)
        if seed not in self._of_seed:
            self._of_seed[seed] = self.source.draw(seed)
        return dict(self._of_seed[seed].options)

    def ended(self, row: int, episode: Ended, rule: str) -> None:
        """The episode in ``row`` reached its end; ``rule``: the spec's, "once" or "at_end"."""
        start = self._of_seed[self._rows[row]]
        success = episode.success(rule)
        self.source.ended(start, Result(episode.ret, episode.length, success))
        if self._lines is not None:
            level = {"level": start.level} if start.level >= 0 else {}
            self._lines.put(
                {
                    "episode": episode.id, "seed": episode.seed, "options": start.options, **level,
                    "return": episode.ret, "length": episode.length, "success": success,
                }
            )  # fmt: skip
        if self._kept is not None and (now := self._clock()) >= self._save_at:
            self._save_at = now + SAVE_EVERY_S
            self.save()

    def numbers(self) -> dict[str, float]:
        """The source's, for heartbeats."""
        return self.source.numbers()

    def save(self) -> None:
        """Write what the source has learned; a full disk keeps the state before."""
        if self._kept is not None:
            data = {"settings": self._settings, "state": self.source.state()}
            unfinished = self._kept.with_suffix(".part")
            with contextlib.suppress(OSError):
                unfinished.write_text(json.dumps(data))
                unfinished.replace(self._kept)

    def close(self) -> None:
        """The hub stops."""
        self.save()
        if self._lines is not None:
            self._lines.close()

    def _leave(self, seed: int) -> None:
        self._users[seed] -= 1
        if not self._users[seed]:
            del self._users[seed]
            self._of_seed.pop(seed, None)

    def _restore(self, path: Path) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):  # a damaged one: begin anew
            data = json.loads(path.read_text())
            if data["settings"] == self._settings:
                self.source.load(data["state"])
