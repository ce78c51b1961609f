"""Policies: one file per family, one contract for all (`base`)."""

from collections.abc import Callable
from typing import Any

#: Files beside the plug-ins.
NOT_PLUGINS = ("text", "trunk", "wrap")


def of_function(function: Callable[..., Any]) -> Any:
    """The plug-in that a function alone is: of the number of inputs it makes a torch module."""
    from rollbus_policies._own import plugin

    return plugin(function)
