"""The parser of all commands: what is left out is named, with an example."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

_REQUIRED = "the following arguments are required: "
#: What is required -> how an example gives it.
_EXAMPLES = {
    "recipe": "recipes/cartpole_ppo.yaml", "rollbus collect recipe": "recipes/toy_reach_sft.yaml",
    "pipeline": "pipelines/toy_reach.yaml", "dataset": "data/toy_reach", "data": "data/toy_reach",
    "DATASET|key=value": "data/toy_reach", "--out": "--out runs/made",
    "--value": "--value runs/value", "--over": "--over algorithm.learning_rate=1e-4..1e-2:log",
    "RUN_DIR": "runs/a runs/b", "actor=COUNT": "actor=2", "key": "algorithm.learning_rate", "name": "arm-1",
    "--role": "--role peer", "SERVICE[+SERVICE]": "hub+actor",
}  # fmt: skip


class Parser(argparse.ArgumentParser):
    """What may be repeated may be left out; errors about what may not show an example."""

    def __init__(self, **options: Any) -> None:
        if description := options.get("description"):
            options["description"] = description.replace("``", "")  # a docstring's marks of code
        super().__init__(**options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        if options.get("nargs") == "*":
            options.setdefault("default", [])  # else argparse calls it required where something else is
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        wanted = message.removeprefix(_REQUIRED).split(", ")
        if message.startswith(_REQUIRED) and all(name in _EXAMPLES for name in wanted):
            given = (_EXAMPLES.get(f"{self.prog} {name}", _EXAMPLES[name]) for name in wanted)
            message += f"; for example: {' '.join([self.prog, *given])}"
        super().error(message)
