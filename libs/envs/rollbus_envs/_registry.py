"""What environments of the Gymnasium registry need; read before anything is imported."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import logging
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, FrozenSet

#: Extra of gymnasium -> (the package it brings, the environments that need it).
_EXTRAS = {
    "mujoco": (
        "mujoco",
        "Ant HalfCheetah Hopper Humanoid HumanoidStandup InvertedDoublePendulum InvertedPendulum "
        "Pusher Reacher Swimmer Walker2d",
    ),
    "box2d": ("Box2D", "BipedalWalker BipedalWalkerHardcore CarRacing LunarLander LunarLanderContinuous"),
}
_NEEDS = {
    name: (package, "gymnasium[%s]" % extra)
    for extra, (package, names) in _EXTRAS.items()
    for name in names.split()
}


def packages(config: Any) -> Dict[str, str]:
    """Package -> what pip installs it by, for the environment ``config.id``."""
    name = _unversioned(config.id)
    return dict([_NEEDS[name]]) if name in _NEEDS else {}


def problem(config: Any) -> str:
    """Why the installed gymnasium has no environment ``config.id``; empty: it has, or nobody can tell yet.

    The ids are read from its source, which is many times faster than importing it.
    """
    known = _ids()
    if not known or ":" in config.id or config.id in known or config.id in {_unversioned(id) for id in known}:
        return ""
    near = difflib.get_close_matches(config.id, sorted(known), 1, 0.0)[0]
    return "%r is no environment of gymnasium; the nearest is %s (of another package: module:Id)" % (
        config.id, near
    )  # fmt: skip


@lru_cache(1)
def _ids() -> FrozenSet[str]:
    """All ids; none without gymnasium, or where other packages add theirs by themselves."""
    spec = importlib.util.find_spec("gymnasium")
    if spec is None or spec.origin is None or _plugins():
        return frozenset()
    path = Path(spec.origin).parent / "envs" / "__init__.py"
    return frozenset(re.findall(r"\bid=\"([^\"]+)\"", path.read_text())) if path.exists() else frozenset()


def _plugins() -> bool:
    found: Any = importlib.metadata.entry_points()
    group = "gymnasium.envs"
    return bool(found.select(group=group) if hasattr(found, "select") else found.get(group))


def _unversioned(id: str) -> str:
    return re.sub(r"-v\d+$", "", id)


def before_making(config: Any) -> None:
    """MuJoCo's warnings become log lines, each once; by itself it writes MUJOCO_LOG.TXT where it runs."""
    if "mujoco" not in packages(config):
        return
    try:
        import mujoco
    except ModuleNotFoundError:
        return  # making the environment says so, with what to install
    if hasattr(mujoco, "get_mju_user_warning") and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lru_cache(64)(logging.getLogger("mujoco").warning))


def install_line(gymnasium: Any, env_id: str, error: Exception) -> str:
    """The pip line for the extra that the registered entry point belongs to."""
    registered = gymnasium.registry.get(env_id)
    entry = str(getattr(registered, "entry_point", ""))
    prefix = "gymnasium.envs."
    if entry.startswith(prefix):
        extra = entry[len(prefix) :].partition(".")[0].partition(":")[0].replace("_", "-")
        return 'pip install "gymnasium[%s]"' % extra
    missing = getattr(error, "name", None)
    return "pip install %s" % missing if missing else "see its documentation"
