"""What a setting means, its value and where that comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rollbus_core.config import plugins
from rollbus_core.config.nearest import hint
from rollbus_core.config.recipe import section_models
from rollbus_core.config.source import DEFAULT
from rollbus_core.config.values import describe, unit
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from rollbus_core.config.load import Resolved

#: Stands for "there is no default: a recipe must say it".
REQUIRED = "(required)"


def explain(key: str, resolved: Resolved | None = None) -> list[dict[str, Any]]:
    """One row per key: key, meaning, type, unit, default, value, origin.

    ``key`` is dotted ("env.num_envs", "env.kwargs.gravity" too), a section, or "" for everything.
    Without ``resolved`` the default plug-ins are explained, and keys of other plug-ins where only
    those have them, with ``plugin`` naming which. Raises `ConfigError` with the nearest key.
    """
    models = _models(resolved)
    section, _, rest = key.partition(".")
    if not key or (key in models and not rest):
        sections = [key] if key else list(models)
        return [
            _row(s, name, field, resolved) for s in sections for name, field in models[s].model_fields.items()
        ]
    name = rest.partition(".")[0]
    if section in models and name in models[section].model_fields:
        return [_row(section, name, models[section].model_fields[name], resolved)]
    others = _of_other_plugins(section, name)
    if others:
        return others
    valid = [f"{s}.{n}" for s, model in models.items() for n in model.model_fields]
    near = hint(key, [*models, *valid])
    raise ConfigError(f"unknown key {key!r}; sections are {', '.join(models)}{near}")


def default_of(field: FieldInfo) -> Any:
    """The default of ``field``, or `REQUIRED`."""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return REQUIRED
    return default.model_dump(mode="json") if isinstance(default, BaseModel) else default


def meaning(section: str, name: str, field: FieldInfo) -> str:
    """What the key is for."""
    if name == "name" and section in plugins.PLUGIN_PACKAGES and not field.description:
        return f"Plug-in: a file of {plugins.PLUGIN_PACKAGES[section]}, or the dotted path of your module."
    return field.description or ""


def _models(resolved: Resolved | None) -> dict[str, type[BaseModel]]:
    if resolved is not None:
        return {name: type(value) for name, value in resolved.recipe}
    return section_models({section: plugins.default_name(section) for section in plugins.PLUGIN_PACKAGES})


def _row(section: str, name: str, field: FieldInfo, resolved: Resolved | None) -> dict[str, Any]:
    key, default = f"{section}.{name}", default_of(field)
    row = {
        "key": key,
        "meaning": meaning(section, name, field),
        "type": describe(field),
        "unit": unit(field),
        "default": default,
    }
    if resolved is not None:
        row["value"] = getattr(getattr(resolved.recipe, section), name)
        row["origin"] = resolved.origins.get(key, DEFAULT)
    return row


def _of_other_plugins(section: str, name: str) -> list[dict[str, Any]]:
    if section not in plugins.PLUGIN_PACKAGES:
        return []
    rows = []
    for plugin in plugins.names(section):
        field = plugins.section_model(section, plugin).model_fields.get(name)
        if field is not None:
            rows.append(_row(section, name, field, None) | {"plugin": plugin})
    return rows
