"""Find a plug-in by name: one file in one package, or ``module:attribute`` for anyone's own."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Any, List

from .errors import ConfigError, MissingPackage


def names(package: str) -> List[str]:
    """The plug-ins of ``package``: its modules that do not start with an underscore.

    A package may name further modules that are none in ``NOT_PLUGINS``.
    """
    module = importlib.import_module(package)
    others = ("base",) + tuple(getattr(module, "NOT_PLUGINS", ()))
    found = (info.name for info in pkgutil.iter_modules(module.__path__))
    return sorted(name for name in found if not name.startswith("_") and name not in others)


def find(package: str, name: str) -> Any:
    """The module that implements ``name``: a file of ``package`` or ``some.module`` of the user's.

    A user's own plug-in is named by the dotted path of its module.
    """
    if "." in name:
        if not _is_dotted(name):
            raise ConfigError("%r is no dotted path of a module" % name)
        return _import(name, name)
    known = names(package)
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = " (did you mean %r?)" % near[0] if near else ""
        raise ConfigError(
            "%r is not one of: %s%s; a plug-in of your own is given as the dotted path of its "
            "module" % (name, ", ".join(known), hint)
        )
    return _import("%s.%s" % (package, name), name)


def function(name: str, key: str) -> Any:
    """The function ``module:function`` that setting ``key`` names. Raises `ConfigError`."""
    module, _, attribute = name.partition(":")
    if not _is_dotted(module):
        raise ConfigError("%s %r is no module:function" % (key, name))
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ConfigError("%s %s: no module %r; is it on PYTHONPATH?" % (key, name, error.name)) from None
    if not callable(found):
        raise ConfigError("%s %s: %s has no function %r" % (key, name, module, attribute))
    return found


def _is_dotted(name: str) -> bool:
    """Whether ``name`` is words with dots between them; a relative path of Python's import is none."""
    return all(part.isidentifier() for part in name.split("."))


def _import(path: str, name: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        raise MissingPackage(
            "%r needs the package %r, which is not installed" % (name, error.name)
        ) from error
