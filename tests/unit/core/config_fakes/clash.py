"""An environment plug-in that redefines a key of every environment."""

from dataclasses import dataclass

needs: list = []


@dataclass
class Config:
    """Not allowed."""

    num_envs: int = 3
