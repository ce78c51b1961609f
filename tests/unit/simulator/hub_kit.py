"""A scripted environment and an actor that records what it is told, for the tests of the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollbus_core.config.models import EnvConfig
from rollbus_core.service import Service
from rollbus_simulator.episodes import EpisodeSource, TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.env import Env, StepResult
from rollbus_wire.link import Link, local_pair
from rollbus_wire.messages import Act, Attach, Attached, Message, Tick
from rollbus_wire.polling import Poller, drain
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec


class Script(Env):
    """Each row shows [episodes begun, steps taken]; the step's number is its reward.

    ``length(seed)`` steps end an episode, by termination if ``terminates(seed)`` else truncation;
    ``success(seed, step)``. ``asked`` records every request.
    """

    def __init__(
        self, num_rows: int, *, length: Callable[[int], int] = lambda seed: 3,
        terminates: Callable[[int], bool] = lambda seed: True,
        success: Callable[[int, int], bool] | None = None, action: ActionSpec | None = None,
        reward: Callable[[int], float] = float, **spec: Any,
    ) -> None:  # fmt: skip
        self.num_rows = num_rows
        self.spec = EnvSpec(
            name="script",
            observation={"obs": ArraySpec("float32", (2,))},
            action=action or ActionSpec("discrete", num=[1000]),
            has_success=success is not None,
            **spec,
        )
        self.length, self.terminates, self.success, self.reward = length, terminates, success, reward
        self.begun, self.steps = np.zeros(num_rows, int), np.zeros(num_rows, int)
        self.seeds = np.zeros(num_rows, int)
        self.asked: list[tuple[Any, ...]] = []
        self.actions: list[list[float]] = [[] for _ in range(num_rows)]

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
        self.asked.append(("reset", rows.tolist()))
        self.begun[rows] += 1
        self.steps[rows] = 0
        self.seeds[rows] = seeds
        return self.observe(rows)

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        self.asked.append(("step", rows.tolist(), observe))
        self.steps[rows] += 1
        for row, action in zip(rows.tolist(), actions.tolist()):
            self.actions[row].append(action)
        over = np.array([self.steps[r] >= self.length(int(self.seeds[r])) for r in rows])
        ends = np.array([self.terminates(int(self.seeds[r])) for r in rows])
        success = None
        if self.success is not None:
            success = np.array([self.success(int(self.seeds[r]), int(self.steps[r])) for r in rows])
        reward = np.array([self.reward(int(self.steps[r])) for r in rows], np.float32)
        obs = self.frames(rows) if observe else None
        return StepResult(obs, reward, over & ends, over & ~ends, success)

    def observe(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append(("observe", rows.tolist()))
        return self.frames(rows)

    def frames(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {"obs": np.stack([self.begun[rows], self.steps[rows]], 1).astype(np.float32)}

    def close(self) -> None:
        self.asked.append(("close",))


class Actor:
    """Attaches to slices and answers ticks; ``decide`` gives the action of a tick."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.got: list[Message] = []

    def attach(self, name: str, assignment: tuple[int, int] = (0, 0)) -> None:
        self.link.send(Attach(slice=name, assignment=list(assignment)))

    def read(self) -> list[Message]:
        """What arrived since the last call."""
        new = [envelope.message for envelope in drain(self.link)]
        self.got += new
        return new

    def ticks(self) -> list[Tick]:
        return [m for m in self.read() if isinstance(m, Tick)]

    def act(self, tick: Tick, value: Any = None, **fields: Any) -> None:
        """Answer ``tick``, by default with action 0."""
        action = np.zeros(len(tick.rows), np.int64) if value is None else np.asarray(value)
        act = Act(tick.slice, tick.fence, tick.tick, tick.rows, action)
        for key, given in fields.items():
            setattr(act, key, given)
        self.link.send(act)


class Log:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append((event, fields))

    warning = info


def make_hub(
    make_env: Callable[[int], Env] | None = Script, *, num_rows: int = 1, num_slices: int = 1,
    episodes: EpisodeSource | None = None, actors: int = 1, starts: Any = None, **settings: Any,
) -> tuple[Hub, list[Actor]]:  # fmt: skip
    """A started hub with inline environments, and actors on local links."""
    pairs = [local_pair() for _ in range(actors)]
    hub = Hub(
        "hub-0", 0, EnvConfig(**settings), num_rows=num_rows, num_slices=num_slices,
        episodes=episodes or TrainingEpisodes(1), data_links=[hub_end for hub_end, _ in pairs],
        make_env=make_env, log=Log(), starts=starts,
    )  # fmt: skip
    hub.start(Poller())
    return hub, [Actor(actor_end) for _, actor_end in pairs]


def attached(hub: Service, actor: Actor, name: str = "hub-0/0", assignment: Any = (0, 0)) -> Attached:
    """Attach ``actor``; the hub's answer. Ticks that came with it stay in ``actor.got``."""
    actor.attach(name, assignment)
    hub.poll()
    return next(m for m in actor.read() if isinstance(m, Attached))


def play(hub: Hub, actor: Actor, num_ticks: int, **act: Any) -> list[Tick]:
    """Answer the last tick that came and those after it; all that came in order."""
    ticks = [m for m in actor.got if isinstance(m, Tick)][-1:]
    for _ in range(num_ticks - len(ticks)):
        actor.act(ticks[-1], **act)
        hub.poll()
        ticks += actor.ticks()
    return ticks
