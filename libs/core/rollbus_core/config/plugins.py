"""The three sections whose keys come from a plug-in, and how to find them without running it.

A plug-in module has ``Config``, ``needs`` (packages) and imports without torch or a simulator.
Environments run on old interpreters, so their `Config` is a dataclass of the standard library; it
is merged here with `EnvConfig` into one flat section.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import typing
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, Field, create_model, model_validator

from rollbus_core import extras
from rollbus_core.config.models import EnvConfig
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, RollbusError

#: Section -> the package whose files are its plug-ins.
PLUGIN_PACKAGES = {
    "env": "rollbus_envs",
    "policy": "rollbus_policies",
    "algorithm": "rollbus_learner.algorithms",
}
#: Section -> the base of its `Config`, which also says which plug-in is the default.
_BASES = {
    "env": "rollbus_core.config.models:EnvConfig",
    "policy": "rollbus_policies.base:PolicyConfig",
    "algorithm": "rollbus_learner.algorithm:AlgorithmConfig",
}
_CHECKS = ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")


def base_model(section: str) -> type[BaseModel]:
    """What all plug-ins of ``section`` have in common."""
    module, _, name = _BASES[section].partition(":")
    return cast("type[BaseModel]", getattr(importlib.import_module(module), name))


def default_name(section: str) -> str:
    """The plug-in of ``section`` where a recipe names none."""
    return str(base_model(section).model_fields["name"].default)


def names(section: str) -> list[str]:
    """Names of all plug-ins of ``section``; files without a `Config` are helpers, not imported."""
    package = PLUGIN_PACKAGES[section]
    return [name for name in lookup.names(package) if _has_config(f"{package}.{name}")]


def _has_config(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return False
    return bool(re.search(r"^(class Config\b|Config\b.*=)", Path(spec.origin).read_text(), re.MULTILINE))


@cache
def section_model(section: str, name: str) -> type[BaseModel]:
    """The model of ``section`` with plug-in ``name``; equal calls give the same class."""
    module = module_of(section, name)
    config = getattr(module, "Config", None)
    base = base_model(section)
    if config is None:
        raise ConfigError(f"{name!r} has no Config, so it is no {section} plug-in")
    if dataclasses.is_dataclass(config) and base is EnvConfig:
        return _merge(name, cast("type[Any]", config))
    if not (isinstance(config, type) and issubclass(config, base)):
        kind = "a dataclass" if base is EnvConfig else f"a subclass of {base.__name__}"
        raise ConfigError(f"Config of {section} plug-in {name!r} must be {kind}")
    return config


def module_of(section: str, name: str) -> Any:
    """The plug-in ``name`` of ``section``."""
    return lookup.find(PLUGIN_PACKAGES[section], name)


def least_rows(env: Any) -> int:
    """Rows that one object of the environment with settings ``env`` needs at least."""
    of_settings = getattr(module_of("env", env.name), "least_rows", None)
    return 1 if of_settings is None else int(of_settings(env))


def missing_packages(section: str, config: Any) -> dict[str, str]:
    """What the plug-in of ``config`` needs and this interpreter lacks: package -> what pip installs it by.

    A plug-in names packages in ``needs``, and those that depend on settings by ``packages(config)``.
    """
    module = module_of(section, config.name)
    needed = {need: extras.requirement(need) for need in getattr(module, "needs", ())}
    further = getattr(module, "packages", None)
    if further is not None:
        needed |= further(config)
    return {need: needed[need] for need in extras.missing(needed)}


def _merge(name: str, config: type[Any]) -> type[BaseModel]:
    hints = typing.get_type_hints(config)
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        if item.name in EnvConfig.model_fields:
            raise ConfigError(
                f"environment {name!r}: its Config may not redefine the common key {item.name!r}"
            )
        fields[item.name] = (hints[item.name], _field(item))
    own = tuple(fields)

    def build(self: Any) -> Any:
        try:
            config(**{key: getattr(self, key) for key in own})
        except RollbusError as error:
            raise ValueError(str(error)) from None
        return self

    validators = {"build": cast(Any, model_validator(mode="after")(build))}
    return create_model(
        "EnvConfig", __base__=EnvConfig, __doc__=config.__doc__, __validators__=validators, **fields
    )


def _field(item: dataclasses.Field[Any]) -> Any:
    meta = item.metadata
    settings: dict[str, Any] = {key: meta[key] for key in _CHECKS if key in meta}
    settings["description"] = meta.get("description", "")
    if meta.get("unit"):
        settings["json_schema_extra"] = {"unit": meta["unit"]}
    if item.default is not dataclasses.MISSING:
        return Field(item.default, **settings)
    if item.default_factory is not dataclasses.MISSING:
        return Field(default_factory=item.default_factory, **settings)
    return Field(**settings)
