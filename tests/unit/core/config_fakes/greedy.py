"""An algorithm plug-in that wants a reparameterised sample."""

from typing import ClassVar

from config_fakes import learn

needs: tuple = ()


class Config(learn.Config):
    """Learns from samples."""

    requires: ClassVar[frozenset[str]] = frozenset({"log_prob", "sample"})
    name: str = "greedy"
    tau: float = 0.1
