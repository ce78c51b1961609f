"""One file per command, found by listing this folder.

A command file has ``add_parser(subparsers)``, which sets ``run`` to a function of the arguments.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def all_commands() -> list[ModuleType]:
    """All command modules, in alphabetic order."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
