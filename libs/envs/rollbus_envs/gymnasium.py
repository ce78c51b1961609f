"""Every environment of the Gymnasium registry: one object per row.

https://gymnasium.farama.org. MuJoCo tasks need ``pip install "gymnasium[mujoco]"``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from rollbus_wire.env import Env, Rows, check_step
from rollbus_wire.errors import ConfigError, MissingPackage

from ._registry import before_making, install_line, packages, problem

__all__ = ["Config", "make", "needs", "packages", "problem"]

needs = ["gymnasium"]
#: The setting that `problem` is about.
checked = "id"


@dataclass
class Config:
    """Which environment, and what it is made with."""

    id: str = field(
        default="CartPole-v1",
        metadata={"description": "Id in the registry; module:Id imports the module first.", "unit": ""},
    )
    kwargs: Dict[str, Any] = field(
        default_factory=dict,
        metadata={"description": "Further arguments of gymnasium.make.", "unit": ""},
    )
    success: Optional[bool] = field(
        default=None,
        metadata={
            "description": "Whether info holds success or is_success; empty: one step finds out.",
            "unit": "",
        },
    )


def make(config: Config, num_rows: int) -> Env:
    """``num_rows`` environments as rows; raises `ConfigError` or `MissingPackage`."""
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "env.name gymnasium needs the package gymnasium; run: pip install gymnasium"
        ) from error
    before_making(config)
    envs = [_make_one(gymnasium, config) for _ in range(num_rows)]
    has_success = _reports_success(envs[0]) if config.success is None else config.success
    return Rows(envs, name=config.id, has_success=has_success)


def _make_one(gymnasium: Any, config: Config) -> Any:
    try:
        return gymnasium.make(config.id, disable_env_checker=True, **config.kwargs)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise MissingPackage(
            "env.id %s needs a package that is not installed (%s); run: %s"
            % (config.id, error, install_line(gymnasium, config.id, error))
        ) from error
    except gymnasium.error.Error as error:
        raise ConfigError("env.id %s: %s" % (config.id, error)) from error
    except TypeError as error:
        raise ConfigError(
            "env.id %s does not take env.kwargs %s: %s" % (config.id, config.kwargs, error)
        ) from error


def _reports_success(env: Any) -> bool:
    """Whether the info of one step names success; each episode is seeded anew afterwards."""
    env.reset(seed=0)
    env.action_space.seed(0)
    answer = env.step(env.action_space.sample())
    check_step(answer, env)
    info = answer[4]
    return "success" in info or "is_success" in info
