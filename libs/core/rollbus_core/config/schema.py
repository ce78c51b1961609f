"""The JSON schema of recipes, for editors: plug-in sections as alternatives told apart by name."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rollbus_core.config import plugins
from rollbus_core.config.recipe import SECTIONS, section_models

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> dict[str, Any]:
    """One property per section; without ``name`` a plug-in section is that of the default plug-in."""
    shared = section_models({})
    properties: dict[str, Any] = {
        "base": {"type": "string", "description": "Recipe to start from, relative to this file."}
    }
    for section in SECTIONS:
        if section in shared:
            properties[section] = _model_schema(shared[section])
        else:
            properties[section] = _alternatives(section)
    return {
        "$schema": _DIALECT,
        "title": "Rollbus recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _alternatives(section: str) -> dict[str, Any]:
    alternatives = []
    names = plugins.names(section)
    for name in names:
        schema = _model_schema(plugins.section_model(section, name))
        schema["title"] = f"{section}: {name}"
        schema["properties"]["name"] |= {"const": name, "default": name}
        if name != plugins.default_name(section):
            schema["required"] = ["name", *schema.get("required", ())]
        alternatives.append(schema)
    own = {
        "title": f"{section}: a plug-in of your own, by the dotted path of its module",
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": r"\."}},
        "required": ["name"],
    }
    return {"oneOf": [*alternatives, own]}


def _model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of one section, its definitions inline."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inline(schema, definitions)
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        return _inline(definitions[name], definitions)
    return {key: _inline(value, definitions) for key, value in node.items()}
