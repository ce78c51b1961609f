"""Load a recipe: read, override, check, and know where every value came from.

All that can be wrong is found here, before a process starts, and reported at once. Neither torch
nor a simulator is imported.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rollbus_core.config import checks, plugins
from rollbus_core.config.dump import to_yaml
from rollbus_core.config.feeds import feeds as feeds_of
from rollbus_core.config.nearest import hint
from rollbus_core.config.plugins import PLUGIN_PACKAGES
from rollbus_core.config.problems import field_problem, plugin_keys, refusal
from rollbus_core.config.recipe import SECTIONS, AnySection, Recipe, recipe_model, section_models
from rollbus_core.config.settings import gather
from rollbus_core.config.source import DEFAULT, Setting, plain
from rollbus_core.config.values import as_declared
from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_wire.errors import ConfigError, MissingPackage, RollbusError

__all__ = ["PLUGIN_PACKAGES", "RENAMED", "Resolved", "load", "load_resolved"]

#: Old dotted key -> new one. An entry works, with a warning, for one release.
RENAMED: dict[str, str] = {}


@dataclass(frozen=True)
class Resolved:
    """A checked recipe. Loading the text of `to_yaml` gives an equal one."""

    recipe: Recipe
    #: Dotted key -> "recipes/x.yaml:12", "command line" or "default".
    origins: dict[str, str]
    #: Stream -> what is recorded and what one update consumes of it; the main one first.
    feeds: dict[str, Feed]
    #: The file it was loaded from.
    path: Path = dataclass_field(default=Path(), compare=False)

    @property
    def feed(self) -> Feed:
        """Of the main stream."""
        return next(iter(self.feeds.values()))

    @property
    def online(self) -> bool:
        """Whether actors collect; else a run is a broker, sources, a learner and evaluations."""
        return TRAINING_TABLE in self.feeds

    def to_yaml(self) -> str:
        """Every setting with its value, its origin as a comment."""
        return to_yaml(self.recipe, self.origins)


def load(path: str | Path, overrides: Sequence[str] = (), *, check_packages: bool = True) -> Resolved:
    """The recipe in ``path`` with ``overrides`` ("run.seed=3", values in YAML).

    Raises `ConfigError` with one line per problem, or `MissingPackage` if all that is wrong is
    that plug-ins lack packages (``check_packages``).
    """
    settings, problems = gather(Path(path), overrides)
    settings = _rename(settings, problems)
    names = _plugin_names(settings)
    models = _models(names, settings, problems)
    _unknown_keys(settings, models, problems)
    recipe = _validate(settings, names, models, problems)
    if recipe is None or problems:
        raise ConfigError(refusal(problems))
    origins = _origins(recipe, settings)
    problems = checks.problems(recipe, origins)
    feeds: dict[str, Feed] = {}
    if not problems:
        feeds, problems = feeds_of(recipe, origins)
    missing = checks.missing_packages(recipe, origins) if check_packages else []
    if problems:
        raise ConfigError(refusal(problems + missing))
    if missing:
        raise MissingPackage("\n".join(missing))
    return Resolved(recipe, origins, feeds, Path(path))


def load_resolved(path: str | Path, overrides: Sequence[str] = ()) -> Resolved:
    """The resolved configuration of a run folder (``config.yaml``).

    Packages are not checked: a service needs only those of its own plug-ins.
    """
    return load(path, overrides, check_packages=False)


def _rename(settings: dict[str, Setting], problems: list[str]) -> dict[str, Setting]:
    renamed: dict[str, Setting] = {}
    for key, setting in settings.items():
        new = RENAMED.get(key, key)
        if new != key and new in settings:
            problems.append(f"{setting.place}: {key!r} is now called {new!r}, which is set too; keep {new!r}")
        elif new != key:
            warnings.warn(
                f"{setting.place}: {key!r} is now called {new!r}; the old name goes with the next release",
                FutureWarning,
                stacklevel=3,
            )
        renamed.setdefault(new, setting)
    return renamed


def _plugin_names(settings: dict[str, Setting]) -> dict[str, str]:
    names = {}
    for section in PLUGIN_PACKAGES:
        given = settings.get(f"{section}.name")
        names[section] = str(plain(given.tree)) if given else plugins.default_name(section)
    return names


def _models(
    names: dict[str, str], settings: dict[str, Setting], problems: list[str]
) -> dict[str, type[BaseModel]]:
    """Section -> model; `AnySection` where the plug-in is not known."""
    models = section_models({})
    for section, name in names.items():
        try:
            models[section] = plugins.section_model(section, name)
        except RollbusError as error:
            key = f"{section}.name"
            origin = settings[key].place if key in settings else DEFAULT
            problems.append(f"{origin}: {key}: {error}")
            models[section] = AnySection
    return models


def _unknown_keys(
    settings: dict[str, Setting], models: dict[str, type[BaseModel]], problems: list[str]
) -> None:
    valid = [f"{section}.{key}" for section, model in models.items() for key in model.model_fields]
    for key in list(settings):
        section, _, name = key.partition(".")
        model = models.get(section)
        if model is not None and name and (model is AnySection or name in model.model_fields):
            continue
        setting = settings.pop(key)
        value = plain(setting.tree)
        where = f"{setting.place}: unknown key {key!r}"
        if isinstance(value, dict) and not name:
            problems.append(f"{where}; sections are {', '.join(SECTIONS)}{hint(key, SECTIONS)}")
            continue
        owners = ", ".join(plugin_keys(section, name))
        advice = f"; it is a key of {section} {owners}" if owners else hint(key, valid)
        problems.append(f"{where} (value {value!r}){advice}")


def _validate(
    settings: dict[str, Setting],
    names: dict[str, str],
    models: dict[str, type[BaseModel]],
    problems: list[str],
) -> Recipe | None:
    data: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for section, name in names.items():
        data[section]["name"] = name
    for key, setting in settings.items():
        section, _, name = key.partition(".")
        field = models[section].model_fields.get(name)
        if field is not None:
            data[section][name] = as_declared(setting.tree, field.annotation)
    model = recipe_model(models["env"], models["policy"], models["algorithm"])
    try:
        # Strict as JSON: a list may become a tuple, but no string a number.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        found = (field_problem(detail, models, settings) for detail in error.errors(include_url=False))
        problems.extend(dict.fromkeys(found))
        return None


def _origins(recipe: Recipe, settings: dict[str, Setting]) -> dict[str, str]:
    origins = {}
    for section in SECTIONS:
        values = getattr(recipe, section)
        for key, field in type(values).model_fields.items():
            dotted = f"{section}.{key}"
            setting = settings.get(dotted)
            origins[dotted] = setting.origin if setting else DEFAULT
            default = field.get_default(call_default_factory=True)
            if setting and setting.origin == DEFAULT and getattr(values, key) != default:
                origins[dotted] = setting.place
    return origins
