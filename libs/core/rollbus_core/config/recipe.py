"""The root of a recipe: what to run, section by section."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, create_model

from rollbus_core.config import plugins
from rollbus_core.config.models import (
    ActorConfig,
    BrokerConfig,
    CheckpointConfig,
    DataConfig,
    DeployConfig,
    EnvConfig,
    EvalConfig,
    LearnerConfig,
    RunConfig,
    Section,
    StopConfig,
)


class Recipe(Section):
    """All settings of one run.

    ``policy`` and ``algorithm`` are the `Config` of their plug-in, ``env`` is `EnvConfig` with
    the plug-in's own keys beside it.
    """

    run: RunConfig = Field(default_factory=RunConfig)
    env: EnvConfig
    policy: Any
    algorithm: Any
    actor: ActorConfig = Field(default_factory=ActorConfig)
    learner: LearnerConfig = Field(default_factory=LearnerConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    broker: BrokerConfig = Field(default_factory=BrokerConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    stop_when: StopConfig = Field(default_factory=StopConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    deploy: DeployConfig = Field(default_factory=DeployConfig)


SECTIONS = tuple(Recipe.model_fields)


class AnySection(BaseModel):
    """Stands for a section whose plug-in is not known, so that the others can still be checked."""

    model_config = ConfigDict(extra="ignore")


def section_models(names: dict[str, str]) -> dict[str, type[BaseModel]]:
    """Section -> its model, with the plug-ins ``names`` (section -> plug-in)."""
    models: dict[str, type[BaseModel]] = {}
    for section, field in Recipe.model_fields.items():
        if section in names:
            models[section] = plugins.section_model(section, names[section])
        elif section not in plugins.PLUGIN_PACKAGES:
            models[section] = cast("type[BaseModel]", field.annotation)
    return models


@lru_cache(maxsize=64)
def recipe_model(env: type[BaseModel], policy: type[BaseModel], algorithm: type[BaseModel]) -> type[Recipe]:
    """`Recipe` with these plug-in sections; equal calls give the same class, of the 64 used last."""
    sections = {"env": env, "policy": policy, "algorithm": algorithm}
    fields: dict[str, Any] = {name: (model, ...) for name, model in sections.items()}
    return create_model("Recipe", __base__=Recipe, __doc__=Recipe.__doc__, **fields)
