"""Several environments as one batched environment; `multi_task` makes it of settings."""

from __future__ import annotations

import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from rollbus_wire.env import Arrays, Env, StepResult
from rollbus_wire.errors import RollbusError
from rollbus_wire.spec import EXPERT_ACTION, INSTRUCTION, TASK, ArraySpec, EnvSpec, TaskSpec

from ._union import unite

#: What a row adds to the state of its task: steps of the episode, and whether it has succeeded.
_COUNTS = struct.Struct("<i?")
#: More steps than an episode has.
_NO_LIMIT = 1 << 30


class Task(NamedTuple):
    """One entry of ``tasks``, checked."""

    name: str
    env: str
    settings: Dict[str, Any]
    #: 0: what the environment states.
    time_limit: int
    weight: float
    instruction: str


class _Part(NamedTuple):
    """The rows of one task in a request."""

    task: int
    #: Places in the request, and the task's own rows.
    at: np.ndarray
    rows: np.ndarray


class MultiTask(Env):
    """Rows 0, 1, ... run the first task, the next ones the second, and so on."""

    def __init__(self, tasks: Sequence[Task], envs: Sequence[Env], told: Sequence[str]) -> None:
        self.envs, self.num_rows = list(envs), sum(env.num_rows for env in envs)
        starts = np.cumsum([0] + [env.num_rows for env in envs])
        self._starts = starts[:-1]
        self.row_tasks: np.ndarray = np.repeat(np.arange(len(envs), dtype=np.int32), np.diff(starts))
        specs = [env.spec for env in envs]
        self._union = unite({task.name: spec for task, spec in zip(tasks, specs)})
        limits = [min(n for n in (t.time_limit, s.time_limit, _NO_LIMIT) if n) for t, s in zip(tasks, specs)]
        #: Own limits of the rows, where they differ: the hub has but one.
        self._limits = np.array(limits)[self.row_tasks] if len(set(limits)) > 1 else None
        self._steps = np.zeros(self.num_rows, np.int32)
        rules = {spec.success for spec in specs if spec.has_success}
        #: Rows whose success counts once it was there, where for others the last step counts.
        self._keeps = np.array([len(rules) > 1 and s.success == "once" for s in specs])[self.row_tasks]
        self._succeeded = np.zeros(self.num_rows, np.bool_)
        self._words = _words([task.instruction for task in tasks])
        self.spec = self._spec(tasks, specs, told, 0 if limits[0] == _NO_LIMIT else limits[0])

    def _spec(
        self, tasks: Sequence[Task], specs: Sequence[EnvSpec], told: Sequence[str], limit: int
    ) -> EnvSpec:
        union = self._union
        observation = dict(union.observation)
        observation[TASK] = ArraySpec("int64", (), 0.0, float(len(tasks) - 1), layout="onehot")
        if self._words is not None:
            observation[INSTRUCTION] = ArraySpec("uint8", self._words.shape[1:], 0.0, 255.0, layout="tokens")
        rules = {spec.success for spec in specs if spec.has_success}
        own_limits = self._limits is not None
        return EnvSpec(
            name=" + ".join(task.name for task in tasks),
            observation=observation,
            action=union.action,
            groups={name: keys + list(told) for name, keys in union.groups.items()},
            time_limit=0 if own_limits else limit,
            internal_truncation=own_limits or any(spec.internal_truncation for spec in specs),
            late_observe=_worst([spec.late_observe for spec in specs], ("exact", "stale", "none")),
            seeding=_worst([spec.seeding for spec in specs], ("row", "scene", "none")),
            deterministic=all(spec.deterministic for spec in specs),
            has_success=bool(rules),
            success=rules.pop() if len(rules) == 1 else "at_end",
            tasks=[self._task(i, task, spec) for i, (task, spec) in enumerate(zip(tasks, specs))],
        )

    def _task(self, index: int, task: Task, spec: EnvSpec) -> TaskSpec:
        places = self._union.places[index]
        return TaskSpec(
            task.name, task.instruction, self._union.actions[index].places, list(spec.action.num),
            {key: at for key, at in places.items() if at is not None}, spec.has_success,
        )  # fmt: skip

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Sequence[Any]) -> Arrays:
        self._steps[rows], self._succeeded[rows] = 0, False
        parts = list(self._parts(rows))
        given = [[options[i] for i in part.at] if options else [] for part in parts]
        return self._joined(
            rows, [(p, self.envs[p.task].reset(p.rows, seeds[p.at], g)) for p, g in zip(parts, given)]
        )

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        count = len(rows)
        reward, success = np.zeros(count, np.float32), np.zeros(count, np.bool_)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        seen: List[Tuple[_Part, Arrays]] = []
        failed: Dict[int, RollbusError] = {}
        for part in self._parts(rows):
            own = self._union.actions[part.task].to_own(actions[part.at])
            result = self.envs[part.task].step(part.rows, own, observe)
            reward[part.at], terminated[part.at] = result.reward, result.terminated
            truncated[part.at] = result.truncated
            if result.success is not None:
                success[part.at] = result.success
            failed.update({int(part.at[i]): error for i, error in (result.failed or {}).items()})
            if result.obs is not None:
                seen.append((part, result.obs))
        self._steps[rows] += 1
        if self._limits is not None:
            truncated |= self._steps[rows] >= self._limits[rows]
        self._succeeded[rows] |= success
        success = np.where(self._keeps[rows], self._succeeded[rows], success)
        obs = self._joined(rows, seen) if observe else None
        given = success if self.spec.has_success else None
        return StepResult(obs, reward, terminated, truncated, given, failed or None)

    def observe(self, rows: np.ndarray) -> Arrays:
        return self._joined(rows, [(p, self.envs[p.task].observe(p.rows)) for p in self._parts(rows)])

    def get_state(self, rows: np.ndarray) -> List[bytes]:
        states = [b""] * len(rows)
        for part in self._parts(rows):
            for at, state in zip(part.at.tolist(), self.envs[part.task].get_state(part.rows)):
                row = rows[at]
                states[at] = _COUNTS.pack(self._steps[row], self._succeeded[row]) + state
        return states

    def set_state(self, rows: np.ndarray, states: Sequence[bytes]) -> Arrays:
        for row, state in zip(rows.tolist(), states):
            self._steps[row], self._succeeded[row] = _COUNTS.unpack_from(state)
        seen = []
        for part in self._parts(rows):
            own = [states[at][_COUNTS.size :] for at in part.at.tolist()]
            seen.append((part, self.envs[part.task].set_state(part.rows, own)))
        return self._joined(rows, seen)

    def stop(self, rows: np.ndarray) -> None:
        for part in self._parts(rows):
            self.envs[part.task].stop(part.rows)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _parts(self, rows: np.ndarray) -> Iterator[_Part]:
        tasks = self.row_tasks[rows]
        for task in range(len(self.envs)):
            at = np.flatnonzero(tasks == task)
            if len(at):
                yield _Part(task, at, (rows[at] - self._starts[task]).astype(np.int32))

    def _joined(self, rows: np.ndarray, seen: Sequence[Tuple[_Part, Arrays]]) -> Arrays:
        """Observations [R, ...] of the union from those of the tasks."""
        tasks, absent = self.row_tasks[rows], self._union.absent
        out = {
            key: np.full((len(rows),) + array.shape, absent.get(key, 0), array.dtype)
            for key, array in self._union.observation.items()
        }
        for part, obs in seen:
            places, actions = self._union.places[part.task], self._union.actions[part.task]
            for key, value in obs.items():
                at = places[key]
                if key == EXPERT_ACTION:
                    out[key][part.at] = actions.to_union(value)
                elif at is None:
                    out[key][part.at] = value
                else:
                    out[key][part.at[:, None], at] = value
        out[TASK] = tasks.astype(np.int64)
        if self._words is not None:
            out[INSTRUCTION] = self._words[tasks]
        return out


def _worst(values: Sequence[str], order: Tuple[str, ...]) -> str:
    """The one of ``values`` that promises least; ``order`` begins with the one that promises most."""
    return max(values, key=order.index)


def _words(texts: Sequence[str]) -> Optional[np.ndarray]:
    """uint8 [tasks, length]: the instructions, zeros behind; None if there are none."""
    data = [text.encode() for text in texts]
    length = max(map(len, data))
    if not length:
        return None
    return np.frombuffer(b"".join(text.ljust(length, b"\0") for text in data), np.uint8).reshape(-1, length)
