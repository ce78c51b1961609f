"""Import a heavy package at its first use, so that configuration loads without it."""

from __future__ import annotations

import importlib
import types
from typing import Any


class LazyModule(types.ModuleType):
    """Stands for a module and becomes it when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        self.__dict__.update(module.__dict__)
        return getattr(module, name)


def lazy_import(name: str) -> Any:
    """A stand-in for the module ``name``."""
    return LazyModule(name)
