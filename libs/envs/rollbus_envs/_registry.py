"""What environments of the Gymnasium registry need; read before anything is imported."""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any, Dict

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
    name = re.sub(r"-v\d+$", "", config.id)
    return dict([_NEEDS[name]]) if name in _NEEDS else {}


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
