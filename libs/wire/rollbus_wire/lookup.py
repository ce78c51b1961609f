"""Find a plug-in by name: one file in one package, or somebody's own module or function."""

from __future__ import annotations

import difflib
import importlib
import os
import pkgutil
from types import SimpleNamespace
from typing import Any, List

from .errors import ConfigError, MissingPackage
from .own_code import guard


def names(package: str) -> List[str]:
    """The plug-ins of ``package``: its modules that do not start with an underscore.

    A package may name further modules that are none in ``NOT_PLUGINS``.
    """
    module = importlib.import_module(package)
    others = ("base",) + tuple(getattr(module, "NOT_PLUGINS", ()))
    found = (info.name for info in pkgutil.iter_modules(module.__path__))
    return sorted(name for name in found if not name.startswith("_") and name not in others)


def find(package: str, name: str) -> Any:
    """The module that implements ``name``: a file of ``package``, or a plug-in of the user's own.

    That is named by the dotted path of its module, or as ``module:function``: the function is its ``make``. A
    function in a module without ``Config`` is a plug-in where ``package`` says what it makes of one
    (``of_function``).
    """
    if ":" in name:
        return _of_function(package, name)
    if "." in name:
        if not _is_dotted(name):
            raise ConfigError("%r is no dotted path of a module" % name)
        return _import(name, name)
    known = names(package)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = " (did you mean %r?)" % near[0] if near else ""
        if name.isidentifier() and os.path.exists(name + ".py"):
            hint = "; of %s.py here write %s:make (or the name of its function)" % (name, name)
        raise ConfigError(
            "%r is not one of: %s%s; a plug-in of your own is given as module:function, or as the dotted "
            "path of its module" % (name, ", ".join(known), hint)
        )
    return _import("%s.%s" % (package, name), name)


def function(name: str, key: str) -> Any:
    """The function ``module:function`` that setting ``key`` names. Raises `ConfigError`."""
    module, _, attribute = name.partition(":")
    if not _is_dotted(module):
        raise ConfigError("%s %r is no module:function" % (key, name))
    with guard(name, "its import"):
        try:
            found = getattr(importlib.import_module(module), attribute, None)
        except ModuleNotFoundError as error:
            raise ConfigError("%s %s: no module %r; is it on PYTHONPATH?" % (key, name, error.name)) from None
    if not callable(found):
        raise ConfigError("%s %s: %s has no function %r" % (key, name, module, attribute))
    return found


def _of_function(package: str, name: str) -> Any:
    """A function of the user's own as a plug-in."""
    made = function(name, "plug-in")
    module = importlib.import_module(name.partition(":")[0])
    if hasattr(module, "Config"):
        return SimpleNamespace(**dict(vars(module), make=made))
    alone = getattr(importlib.import_module(package), "of_function", None)
    if alone is None:
        raise ConfigError(
            "%r: a plug-in of this kind needs settings: a class Config in %s" % (name, module.__name__)
        )
    return alone(made)


def _is_dotted(name: str) -> bool:
    """Whether ``name`` is words with dots between them; a relative path of Python's import is none."""
    return all(part.isidentifier() for part in name.split("."))


def _import(path: str, name: str) -> Any:
    with guard(name, "its import"):
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            missing = str(error.name)
            if path == missing or path.startswith(missing + "."):
                raise ConfigError(
                    "there is no module %r; it is looked for where the command runs, on PYTHONPATH and in "
                    "what is installed" % missing
                ) from error
            raise MissingPackage(
                "%r needs the package %r, which is not installed" % (name, missing)
            ) from error
