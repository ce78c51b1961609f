"""The recipe's environment: how it is made, what it states about itself, where peers of it dial in."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from typing import Any

from rollbus_core.config.models import EnvConfig
from rollbus_core.config.plugins import least_rows
from rollbus_core.rotations import Conventions
from rollbus_envs.worker import maker
from rollbus_wire.errors import BindRefused, SpecError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec, TaskSpec
from rollbus_wire.zmq_link import ZmqLink

#: ZeroMQ gives an address up a little after its socket was closed: the next evaluation waits so long.
REBIND_S = 1.0


def env_maker(env: Any, trained: EnvSpec | None = None) -> Callable[[int], Any]:
    """A function of the number of rows that makes the recipe's environment in this process.

    ``trained``: what the policy that acts in it was trained on; `SpecError` if this is something else.
    """
    of_rows = maker(env.name, _own_fields(env))

    def make(num_rows: int) -> Any:
        made = of_rows(num_rows)
        if trained is not None and (reason := misfit(trained, Conventions(made.spec, env.rotations).seen)):
            made.close()
            raise SpecError(reason)
        return made

    return make


def misfit(trained: EnvSpec, spec: EnvSpec) -> str:
    """Why a policy that was trained on one environment cannot act in another; "": it can."""
    rows = [("an action", _action(trained.action), _action(spec.action))]
    for key in trained.group("policy"):
        here = spec.observation.get(key)
        there = _array(trained.observation[key])
        rows.append((f"observation {key!r}", there, "missing" if here is None else _array(here)))
    theirs, mine = (", ".join(map(_task, each.tasks)) or "none" for each in (trained, spec))
    rows.append(("tasks", theirs, mine))
    wrong = [f"{what} is {here}, there it is {there}" for what, there, here in rows if there != here]
    if not wrong:
        return ""
    return (
        f"the policy was trained on {trained.name}, but this environment is {spec.name}: {'; '.join(wrong)}; "
        "use the env section that it was trained with"
    )


def _array(array: ArraySpec) -> str:
    classes = f" up to {array.high:g}" if array.layout in ("onehot", "tokens") and array.high else ""
    return f"{array.dtype} {list(array.shape)}{classes}{_rotations(array)}"


def _rotations(array: ArraySpec | ActionSpec) -> str:
    return "".join(f", {each.type} at {each.start}" for each in array.rotations)


def _task(task: TaskSpec) -> str:
    places = "".join(f", {key} {at}" for key, at in sorted(task.observation.items()))
    return f"{task.name} (action {task.action}{places})"


def _action(action: ActionSpec) -> str:
    if action.kind == "continuous":
        bounds = f"from {list(action.low)} to {list(action.high)}"
        return f"continuous {list(action.shape)} {bounds}{_rotations(action)}"
    return f"{action.kind} {list(action.num)}"


def offline_spec(recipe: Any) -> EnvSpec:
    """The environment of a run without hubs: its own spec, or what the data says where it dials in."""
    if recipe.env.placement != "dial_in":
        return env_spec(recipe.env)
    from rollbus_core.datasets.reader import Dataset

    for source in recipe.data.sources:
        if (spec := Dataset(source.path).spec) is not None:
            return spec
    raise SpecError(
        "environments dial in (env.placement) and no data set was written by Rollbus, so nothing says what "
        "is observed; set env.placement: inline"
    )


def env_spec(env: Any) -> EnvSpec:
    """What the recipe's environment states about itself; it is made with few rows and closed."""
    if env.placement == "dial_in":
        raise SpecError(
            "environments dial in (env.placement), so what they are is not known beforehand; set "
            "env.placement: inline"
        )
    made = env_maker(env)(least_rows(env))
    made.close()
    return Conventions(made.spec, env.rotations).seen


def worker_command(env: Any, run_id: str) -> Callable[[str, int], list[str]]:
    """The command line of a worker process for (endpoint, number of rows)."""
    own = json.dumps(_own_fields(env))
    return lambda endpoint, num_rows: [
        sys.executable, "-m", "rollbus_envs.worker", env.name, own, endpoint,
        "--num-rows", str(num_rows), "--run", run_id,
    ]  # fmt: skip


def peer_link(placement: str, endpoint: str, bind: Callable[[str], ZmqLink]) -> ZmqLink | None:
    """Where peers dial in, if they do: what ``bind`` makes of ``endpoint``."""
    if placement == "inline":
        return None
    if not endpoint:
        raise SpecError("environments dial in, so evaluation needs an address too: set eval.listen")
    give_up_at = time.monotonic() + REBIND_S
    while True:
        try:
            return bind(endpoint)
        except BindRefused:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def _own_fields(env: Any) -> dict[str, Any]:
    """The plug-in's own settings in the env section."""
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in env
        if name not in EnvConfig.model_fields
    }
