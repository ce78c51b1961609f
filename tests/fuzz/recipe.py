"""Any bytes as a recipe file: a `ConfigError` that names the place, or a resolved recipe that reads back."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path

from fuzz_services import folder

from rollbus_core.config.load import load
from rollbus_core.config.source import read
from rollbus_wire.errors import ConfigError

_path = folder() / "recipe.yaml"
RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def fuzz(data: bytes) -> None:
    _path.write_bytes(data)
    try:
        read(_path)
    except ConfigError:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            resolved = load(_path, check_packages=False)
    except ConfigError as error:
        assert str(error)
        return
    _path.write_text(resolved.to_yaml())
    assert load(_path, check_packages=False) == resolved


def seeds() -> Iterable[bytes]:
    for path in sorted(RECIPES.glob("*.yaml")):
        yield path.read_bytes()
    yield b"a: &x [*x]"
    yield b"[" * 500
    yield b"run: {seed: 1e999, total_steps: 0x_1}"
    yield b'run: {name: "\\ud800"}\n'
