"""The file of a pipeline: read and checked as a whole before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollbus_core import extras
from rollbus_core.config import source
from rollbus_core.config.nearest import hint
from rollbus_core.config.problems import first_problem
from rollbus_launch.stages.base import Stage
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, RollbusError

STAGES = "rollbus_launch.stages"
KEYS = ("deterministic", "stages")


@dataclass(frozen=True)
class Pipeline:
    """Stages in their order, by name."""

    path: Path
    deterministic: bool
    stages: dict[str, Stage]


def read(path: Path) -> Pipeline:
    """The pipeline in ``path``. Raises `ConfigError` with one line per problem."""
    document = source.read(path, "pipeline")
    problems = [
        f"{document.places.get(key, path)}: unknown key {key!r}; a pipeline has {' and '.join(KEYS)}"
        f"{hint(key, KEYS)}"
        for key in document.tree if key not in KEYS
    ]  # fmt: skip
    deterministic = source.plain(document.tree.get("deterministic", source.Plain(False, "false")))
    if not isinstance(deterministic, bool):
        problems.append(f"{path}: deterministic is {deterministic!r}; true or false")
    given = document.tree.get("stages", {})
    if not isinstance(given, dict) or not given:
        raise ConfigError("\n".join([*problems, f"{path}: it has no stages: a mapping of name to stage"]))
    stages: dict[str, Stage] = {}
    for name, tree in given.items():
        where = f"{document.places.get(f'stages.{name}', path)}: stages.{name}"
        try:
            stages[name] = _stage(source.plain(tree), where)
            _check_inputs(stages, name, where, list(given))
            stages[name].identity(bool(deterministic))
            extras.require(f"a stage {stages[name].kind!r}", stages[name].needs)
        except RollbusError as error:
            problems.append(str(error) if str(error).startswith(where) else f"{where}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    return Pipeline(path, bool(deterministic), stages)


def kinds() -> list[str]:
    """All kinds of stages."""
    return lookup.names(STAGES)


def _stage(data: Any, where: str) -> Stage:
    if not isinstance(data, dict) or "kind" not in data:
        raise ConfigError(f"{where} has no kind; one of: {', '.join(kinds())}")
    kind = str(data["kind"])
    if kind not in kinds():
        raise ConfigError(f"{where}.kind is {kind!r}, not one of: {', '.join(kinds())}{hint(kind, kinds())}")
    model: type[Stage] = lookup.find(STAGES, kind).Config
    unknown = [key for key in data if key not in model.model_fields]
    if unknown:
        known = list(model.model_fields)
        raise ConfigError(
            f"{where}: unknown key {unknown[0]!r}; {kind} has {', '.join(known)}{hint(unknown[0], known)}"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}.{first_problem(error)}") from None


def _check_inputs(stages: dict[str, Stage], name: str, where: str, all_names: list[str]) -> None:
    """Inputs are stages above that make what is wanted."""
    above = [other for other in stages if other != name]
    for wanted, makes in stages[name].inputs().items():
        if wanted in above and stages[wanted].makes == makes:
            continue
        if wanted in above:
            raise ConfigError(
                f"{where} needs a {makes} from {wanted!r}, which makes a {stages[wanted].makes}"
            )
        late = "it stands below; move it up" if wanted in all_names else f"stages above: {_listed(above)}"
        raise ConfigError(f"{where} needs stage {wanted!r}; {late}{hint(wanted, above)}")


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
