"""Environments, one file each; a file is found by its name."""

from typing import Any, Callable

#: Modules that are no environments.
NOT_PLUGINS = ("worker",)


def of_function(function: Callable[..., Any]) -> Any:
    """The plug-in that a function alone is: it makes one environment, or a batched one of so many rows."""
    from ._own import plugin

    return plugin(function)
