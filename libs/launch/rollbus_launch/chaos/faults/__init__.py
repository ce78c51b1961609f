"""One fault per file: ``inject(world, fault)`` does it, waits for its end, and says what was done.

The first line of a file's docstring is what people read. ``needs``: attributes of the world that must not
be None.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def all_faults() -> dict[str, ModuleType]:
    """Kind -> module, by the names of the files here."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}
