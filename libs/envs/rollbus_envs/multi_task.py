"""Several environments as one: each row runs one of the tasks, padded to what all of them have.

docs/environments.md, "Several tasks".
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field
from typing import Any, Dict, List, Sequence, Tuple

from rollbus_wire import lookup
from rollbus_wire.env import Env
from rollbus_wire.errors import ConfigError, RollbusError
from rollbus_wire.spec import INSTRUCTION, TASK

from ._multi_task import MultiTask, Task

needs: List[str] = []
#: The setting that `problem` is about.
checked = "tasks"

#: How a policy is told its task -> the observations of its group that do so.
TELL = {"id": [TASK], "instruction": [INSTRUCTION], "both": [TASK, INSTRUCTION], "nothing": []}


@dataclass
class Config:
    """The tasks, and how a policy is told which one it is in."""

    tasks: Dict[str, Any] = field(
        default_factory=dict,
        metadata={
            "description": "Name -> env: its environment (name, settings, time_limit), weight: its part of "
            "the rows (1.0), instruction: the task in words.",
            "unit": "",
        },
    )
    tell: str = field(
        default="id",
        metadata={"description": "What the policy sees of the task: " + ", ".join(TELL) + ".", "unit": ""},
    )


def read(config: Any) -> List[Task]:
    """The tasks of ``config``. Raises `ConfigError` with the entry that is wrong."""
    if not isinstance(config.tasks, dict) or not config.tasks:
        raise ConfigError(
            "env.tasks is empty; name at least one: {reach: {env: {name: toy, kind: continuous}}}"
        )
    if config.tell not in TELL:
        raise ConfigError("env.tell %r is not one of: %s" % (config.tell, ", ".join(TELL)))
    tasks = [_task(str(name), entry) for name, entry in config.tasks.items()]
    if INSTRUCTION in TELL[config.tell]:
        silent = [task.name for task in tasks if not task.instruction]
        if silent:
            raise ConfigError(
                "env.tell: %s needs words; env.tasks.%s.instruction is empty" % (config.tell, silent[0])
            )
    return tasks


def _task(name: str, entry: Any) -> Task:
    where = "env.tasks.%s" % name
    if not name or not all(c.isalnum() or c in "_-." for c in name):
        raise ConfigError("env.tasks: %r is no name of a task; letters, digits, _, - and ." % name)
    known = {"env", "weight", "instruction"}
    if not isinstance(entry, dict) or set(entry) - known or not isinstance(entry.get("env"), dict):
        raise ConfigError(
            "%s is %r; it has env: {name: ...}, and may have weight and instruction" % (where, entry)
        )
    weight, words = entry.get("weight", 1.0), entry.get("instruction", "")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise ConfigError("%s.weight is %r; a number above 0" % (where, weight))
    if not isinstance(words, str) or "\0" in words:
        raise ConfigError("%s.instruction is %r; text" % (where, words))
    settings = dict(entry["env"])
    env, limit = settings.pop("name", ""), settings.pop("time_limit", 0)
    if not isinstance(env, str) or not env:
        raise ConfigError("%s.env has no name; which environment is it?" % where)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ConfigError("%s.env.time_limit is %r; steps, 0 for the environment's own" % (where, limit))
    return Task(name, env, settings, limit, float(weight), words)


def _plugin(task: Task) -> Tuple[Any, Any]:
    """The plug-in of ``task`` and its settings. Raises `ConfigError`."""
    where = "env.tasks.%s.env" % task.name
    try:
        module = lookup.find("rollbus_envs", task.env)
    except RollbusError as error:
        raise ConfigError("%s.name: %s" % (where, error)) from None
    if getattr(module, "Config", None) is Config:
        raise ConfigError("%s.name: tasks within tasks; name them all in env.tasks" % where)
    hints = typing.get_type_hints(module.Config)
    for key, value in task.settings.items():
        if key not in hints:
            raise ConfigError("%s.%s: no such setting; %s has %s" % (where, key, task.env, ", ".join(hints)))
        kind = hints[key]
        number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if kind in (bool, int, float, str) and type(value) is not kind and not number:
            raise ConfigError("%s.%s is %r; it is of type %s" % (where, key, value, kind.__name__))
    return module, module.Config(**task.settings)


def problem(config: Any) -> str:
    """What is wrong with the tasks of ``config``, before anything is made; "": nothing is known to be."""
    try:
        for task in read(config):
            module, settings = _plugin(task)
            found = getattr(module, "problem", lambda _: "")(settings)
            if found:
                return "env.tasks.%s.env: %s" % (task.name, found)
    except RollbusError as error:
        return str(error)
    return ""


def packages(config: Any) -> Dict[str, str]:
    """Package -> what pip installs it by, of all tasks."""
    found: Dict[str, str] = {}
    if problem(config):
        return found
    for module, settings in map(_plugin, read(config)):
        found.update({need: need for need in getattr(module, "needs", ())})
        found.update(getattr(module, "packages", lambda _: {})(settings))
    return found


def least_rows(config: Any) -> int:
    """Rows that one slice, and one worker, must have: one of each task."""
    return max(1, len(config.tasks))


def divide(weights: Sequence[float], num_rows: int) -> List[int]:
    """``num_rows`` in proportion to ``weights``, each at least 1; the rest goes to the largest remainders.

    Raises `ConfigError` if there are fewer rows than weights.
    """
    if num_rows < len(weights):
        raise ConfigError(
            "%d rows for %d tasks; each slice, worker and evaluation needs a row of each (env.num_envs, "
            "env.num_slices, env.workers, eval.num_envs)" % (num_rows, len(weights))
        )
    parts = [weight / sum(weights) * num_rows for weight in weights]
    counts = [max(1, int(part)) for part in parts]
    while sum(counts) != num_rows:
        step = 1 if sum(counts) < num_rows else -1
        able = [i for i, count in enumerate(counts) if count + step >= 1]
        best = max(able, key=lambda i: step * (parts[i] - counts[i]))
        counts[best] += step
    return counts


def make(config: Config, num_rows: int) -> Env:
    """``num_rows`` rows, divided over the tasks; raises `ConfigError` with what does not fit."""
    tasks = read(config)
    counts = divide([task.weight for task in tasks], num_rows)
    envs = []
    for task, count in zip(tasks, counts):
        module, settings = _plugin(task)
        try:
            envs.append(module.make(settings, count))
        except ConfigError as error:
            raise ConfigError("task %s: %s" % (task.name, error)) from error
    return MultiTask(tasks, envs, TELL[config.tell])
