"""A policy plug-in that cannot be sampled with gradient."""

from typing import ClassVar

from rollbus_core.config.models import option
from rollbus_policies.base import PolicyConfig

needs: tuple = ()


class Config(PolicyConfig):
    """A table of log-probabilities."""

    offers: ClassVar[frozenset[str]] = frozenset({"log_prob"})
    name: str = "silent"
    width: int = option(8, "Width of the table.", ge=1)
    tag: str = option("", "Any text.")
