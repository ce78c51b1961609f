"""What a launcher does, whatever starts its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ProcessSpec:
    """One process: its services and its index among its like."""

    roles: tuple[str, ...]
    index: int

    @property
    def name(self) -> str:
        return f"{'+'.join(self.roles)}-{self.index}"


class Launcher(Protocol):
    """Starts processes and keeps them running."""

    def up(self, process: ProcessSpec) -> None:
        """Start ``process``."""
        ...

    def scale(self, role: str, count: int) -> None:
        """Have ``count`` processes whose services include ``role``."""
        ...

    def ps(self) -> list[dict[str, object]]:
        """One map per process: name, pid, restarts, state."""
        ...

    def down(self, timeout_s: float) -> None:
        """End everything within ``timeout_s`` seconds."""
        ...
