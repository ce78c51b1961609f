"""Code of somebody's own that a recipe names: what goes wrong in it, told for people."""

from __future__ import annotations

import sys
import traceback
from contextlib import contextmanager
from typing import Iterator

from .errors import ConfigError, RollbusError


class OwnCodeFailed(ConfigError):
    """A plug-in or function of somebody's own raised; its exception is the cause."""

    code = "own-code"


def is_own(name: str) -> bool:
    """Whether ``name`` is a module or function of somebody's own, not a file of ours."""
    return "." in name or ":" in name


@contextmanager
def guard(name: str, doing: str) -> Iterator[None]:
    """What the plug-in ``name`` raises while ``doing``, as `OwnCodeFailed` with file and line.

    Errors of the tree, and those that another try may not meet (files, connections, memory), stay as they
    are; so do all errors of plug-ins that are shipped.
    """
    try:
        yield
    except (RollbusError, OSError, MemoryError):
        raise
    except Exception as error:
        if not is_own(name):
            raise
        raise OwnCodeFailed("%s failed in %s: %s" % (name, doing, told(error, name))) from error


def told(error: Exception, name: str) -> str:
    """``error`` in one line, with the last place in the module of ``name``.

    Nothing of it has run if it cannot be called as it is; then the place is where it is defined.
    """
    text = "%s: %s" % (type(error).__name__, " ".join(str(error).split()))
    if isinstance(error, SyntaxError):
        return text  # it names the place itself
    frames = traceback.extract_tb(error.__traceback__)
    module, _, attribute = name.partition(":")
    file = getattr(sys.modules.get(module), "__file__", None)
    own = [(frame.filename, frame.lineno) for frame in frames if frame.filename == file]
    if not own:
        called = getattr(sys.modules.get(module), attribute, None)
        begun = getattr(called, "__init__", None) if isinstance(called, type) else called
        code = getattr(begun, "__code__", None)
        own = [(code.co_filename, code.co_firstlineno)] if code else [(f.filename, f.lineno) for f in frames]
    return "%s (%s:%s)" % (text, *own[-1]) if own else text
