"""Chunks of one row from an episode of a data set.

They differ from an actor's in one column: ``env_action``, what was executed, instead of ``action``, what a
policy scores; the learner, which has the policy, computes one from the other. For policies that decide C
actions at once it holds the C that follow, and ``action_valid`` which of them the episode has. Symbols as
in `rollbus_core.columns`; N = 1, M = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollbus_core.columns import Layout, chunk_columns
from rollbus_core.datasets.episode import Episode
from rollbus_wire.spec import EnvSpec


def data_layout(
    spec: EnvSpec, num_decisions: int, frame_stack: int, chunk: int = 1, *, returns: bool = False,
    labelled: bool = False,
) -> Layout:  # fmt: skip
    """The cell of T decisions of one row, with the ``chunk`` actions that follow each.

    ``returns``: with the column ``return_to_go``; ``labelled``: with ``label``.
    """
    several = (chunk,) if chunk > 1 else ()
    columns = chunk_columns(
        {key: (item.dtype, item.shape) for key, item in spec.observation.items()},
        (spec.action.dtype, (*several, *spec.action.shape)),
        num_decisions=num_decisions, num_rows=1, num_finals=1, num_history=frame_stack - 1, chunk_length=1,
    )  # fmt: skip
    named = {("env_action" if name == "action" else name): item for name, item in columns.items()}
    if several:
        named["action_valid"] = ("bool", (num_decisions, 1, chunk))
    if returns:
        named["return_to_go"] = ("float32", (num_decisions, 1))
    if labelled:
        named["label"] = ("int8", (num_decisions, 1))
    return Layout.build(
        named, num_decisions=num_decisions, num_rows=1, num_finals=1, num_history=frame_stack - 1
    )


@dataclass(frozen=True)
class Segment:
    """Decisions ``begin`` to ``end`` of one episode."""

    episode: Episode
    #: The episode's number in the table.
    number: int
    begin: int
    end: int
    #: Of ``return_to_go``, where the layout has it.
    discount: float | None = None

    @property
    def length(self) -> int:
        return self.end - self.begin

    @property
    def is_last(self) -> bool:
        """Whether the episode ends with it."""
        return self.end == len(self.episode)

    @property
    def num_finals(self) -> int:
        """1 if the observation after the episode's last decision is known and is in it."""
        return int(self.is_last and self.episode.final_obs is not None)

    def write(self, layout: Layout, buffer: Any, offset: int) -> None:
        """Fill a cell of `data_layout`."""
        views = layout.views(buffer, offset)
        for name, view in views.items():
            view[...] = -1 if name == "final_slot" else 0
        episode, here, at = self.episode, slice(self.begin, self.end), slice(0, self.length)
        for key, frames in episode.obs.items():
            self._observations(views[f"obs/{key}"], key, frames, layout.num_history)
        views["lengths"][:] = self.length
        if (valid := views.get("action_valid")) is None:
            views["env_action"][at, 0] = episode.action[here]
        else:
            places = np.arange(self.begin, self.end)[:, None] + np.arange(valid.shape[2])
            valid[at, 0] = places < len(episode)
            views["env_action"][at, 0] = episode.action[np.minimum(places, len(episode) - 1)]
        views["reward"][at, 0, 0] = episode.reward[here]
        if self.discount is not None:
            views["return_to_go"][at, 0] = returns_to_go(episode.reward, self.discount)[here]
        views["num_steps"][at, 0] = 1
        views["source"][at, 0] = episode.source[here]
        views["episode"][at, 0] = self.number
        views["step"][at, 0] = np.arange(self.begin, self.end)
        if "label" in views:
            views["label"][at, 0] = -1 if episode.label is None else episode.label[here]
        views["last_step"][:] = 0 if self.is_last else self.end
        if self.is_last:
            self._end(views)

    def _observations(self, view: np.ndarray, key: str, frames: np.ndarray, history: int) -> None:
        places = np.arange(self.begin - history, min(self.end + 1, len(frames)))
        view[: len(places), 0] = frames[np.maximum(places, 0)]
        final = self.episode.final_obs
        if self.is_last and final is not None:
            view[len(places), 0] = final[key]

    def _end(self, views: Mapping[str, np.ndarray]) -> None:
        episode, last = self.episode, self.length - 1
        views["terminated"][last, 0] = episode.terminated
        # An end of which nothing is known gives no bootstrap either.
        views["truncated"][last, 0] = not episode.terminated
        success = -1 if episode.success is None else int(episode.success)
        views["final_return"][0], views["final_length"][0] = episode.total_reward, len(episode)
        views["final_success_once"][0] = views["final_success_at_end"][0] = success
        if episode.final_obs is not None:
            views["final_slot"][last, 0] = 0
            for key, value in episode.final_obs.items():
                views[f"final_obs/{key}"][0] = value


def segments(
    episode: Episode, number: int, num_decisions: int, discount: float | None = None
) -> Iterator[Segment]:
    """``episode`` in parts of at most ``num_decisions``."""
    for begin in range(0, len(episode), num_decisions):
        yield Segment(episode, number, begin, min(begin + num_decisions, len(episode)), discount)


def returns_to_go(reward: np.ndarray, discount: float) -> np.ndarray:
    """float64 [T]: discounted sum of ``reward`` [T] from each decision to the last."""
    found, after = np.zeros(len(reward)), 0.0
    for place in reversed(range(len(reward))):
        found[place] = after = float(reward[place]) + discount * after
    return found
