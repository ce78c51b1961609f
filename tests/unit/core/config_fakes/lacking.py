"""An environment plug-in whose package does not exist."""

from dataclasses import dataclass

needs = ["numpy", "no_such_simulator[extra]"]


@dataclass
class Config:
    """No keys."""
