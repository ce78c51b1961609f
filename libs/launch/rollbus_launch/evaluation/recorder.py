"""Whole episodes from what a hub and an actor say to each other: ticks and the answers to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollbus_core.datasets.episode import Arrays, Episode
from rollbus_wire.link import Envelope, LocalLink
from rollbus_wire.messages import Act, Attached, Message, Tick
from rollbus_wire.spec import EXPERT_ACTION, TASK, EnvSpec


@dataclass
class _Row:
    """The running episode of one row."""

    episode: int = -1
    seed: int = -1
    obs: list[Arrays] = field(default_factory=list)
    actions: list[np.ndarray] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


class EpisodeRecorder:
    """Calls ``on_episode`` with the episodes 0 to ``num`` - 1 in this order.

    ``source``: who acts, an index into `rollbus_core.columns.SOURCES`. An episode that was interrupted is
    given when it has been run again.
    """

    def __init__(self, num: int, source: int, on_episode: Callable[[Episode], Any]) -> None:
        self.num, self.source, self._on_episode = num, source, on_episode
        #: Known when the hub has granted its slice.
        self.spec: EnvSpec | None = None
        #: What episodes begin with, a function of their seed; None: nothing.
        self.options: Any = None
        self._rows: dict[int, _Row] = {}
        self._waiting: dict[int, Episode | None] = {}
        self._next = 0

    @property
    def done(self) -> bool:
        """Whether all of them have been given, apart from those that were lost."""
        return self._next >= self.num

    def watch(self, end: LocalLink) -> LocalLink:
        """``end``, the actor's, with this recorder listening."""
        return _Watched(end, self)

    def lost(self, episode: int) -> None:
        """No more of ``episode`` will come: it was interrupted too often."""
        self._waiting[episode] = None
        self._give()

    # --- what is heard ---------------------------------------------------------------------------

    def heard(self, message: Message) -> None:
        """What the hub says."""
        if isinstance(message, Attached):
            self.spec = EnvSpec.from_data(message.spec)
        elif isinstance(message, Tick):
            finals = {int(place): m for m, place in enumerate(message.final)}
            for place, number in enumerate(message.rows.tolist()):
                self._tick(message, place, self._rows.setdefault(number, _Row()), finals.get(place))

    def answered(self, message: Message) -> None:
        """What the actor says."""
        if not isinstance(message, Act):
            return
        actions = message.action
        if message.chunked:  # the mean of plans, with actor.temporal_ensemble
            assert actions.shape[1] == 1, "plans are executed step by step (rollbus_actor.single_steps)"
            actions = actions[:, 0]
        for number, action in zip(message.rows.tolist(), actions):
            self._rows[number].actions.append(np.array(action))

    def _tick(self, tick: Tick, place: int, row: _Row, final: int | None) -> None:
        steps = int(tick.num_steps[place])
        if steps:
            row.rewards.append(float(tick.reward[place, :steps].sum()))
        if final is not None:
            if row.rewards and not tick.interrupted[place]:
                self._waiting[row.episode] = self._episode(tick, place, row, final)
                self._give()
            row.obs, row.actions, row.rewards = [], [], []
        if not row.obs:
            row.episode = int(tick.episode[place])
            row.seed = -1 if tick.seed is None else int(tick.seed[place])
        row.obs.append(
            {key: np.array(value[place]) for key, value in tick.obs.items() if key != EXPERT_ACTION}
        )

    def _episode(self, tick: Tick, place: int, row: _Row, final: int) -> Episode:
        count, spec = len(row.rewards), self.spec
        assert spec is not None
        flags = tick.final_success_at_end if spec.success == "at_end" else tick.final_success_once
        flag = int(flags[final])
        return Episode(
            obs={key: np.stack([obs[key] for obs in row.obs[:count]]) for key in row.obs[0]},
            action=np.stack(row.actions[:count]).astype(spec.action.dtype),
            reward=np.array(row.rewards, np.float32), source=np.full(count, self.source, np.uint8),
            terminated=bool(tick.terminated[place]),
            truncated=bool(tick.truncated[place] and not tick.terminated[place]),
            final_obs={key: np.array(tick.final_obs[key][final]) for key in row.obs[0]},
            success=None if flag < 0 else bool(flag), seed=row.seed,
            options=None if self.options is None else self.options.draw(row.seed).options,
            task=self._task(row),
        )  # fmt: skip

    def _task(self, row: _Row) -> str:
        """What the episode of ``row`` is, in words or by its name; "" where there are no tasks."""
        if self.spec is None or not self.spec.tasks:
            return ""
        task = self.spec.tasks[int(row.obs[0][TASK])]
        return task.instruction or task.name

    def _give(self) -> None:
        while self._next in self._waiting and not self.done:
            episode = self._waiting.pop(self._next)
            self._next += 1
            if episode is not None:
                self._on_episode(episode)


class _Watched(LocalLink):
    """The actor's end of a local link; a recorder hears both directions."""

    def __init__(self, end: LocalLink, recorder: EpisodeRecorder) -> None:
        super().__init__(end.inbox, deque(), end.run, end.sender)
        self._end, self._recorder = end, recorder

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        self._recorder.answered(message)
        return self._end.send(message, to, re, id)

    def recv(self) -> Envelope | None:
        envelope = super().recv()
        if envelope is not None:
            self._recorder.heard(envelope.message)
        return envelope

    def close(self) -> None:
        super().close()
        self._end.close()
