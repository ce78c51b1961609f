"""An environment plug-in: a dataclass of the standard library, as on an old interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

needs = ["numpy"]


@dataclass
class Config:
    """A point that reaches a goal."""

    speed: float = field(default=1.0, metadata={"description": "How fast it moves.", "unit": "m/s"})
    kwargs: Dict[str, Any] = field(default_factory=dict, metadata={"description": "Further arguments."})
    label: Optional[str] = None

    def __post_init__(self) -> None:
        if self.speed < 0:
            raise ValueError("speed %s is negative" % self.speed)
