"""What a hub says of environments that dial in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollbus_core.config.models import EnvConfig
from rollbus_simulator.slices import Slice
from rollbus_wire.link import Link
from rollbus_wire.sockets import split_key


def awaited(env: EnvConfig, wanted: int, slices: Mapping[str, Slice], link: Link | None) -> dict[str, Any]:
    """Numbers for heartbeats: rows that are to dial in, those that are not here now, and where they dial."""
    if env.placement != "dial_in":
        return {}
    here = sum(each.num_rows - len(each.seats.empty) for each in slices.values())
    address = split_key(getattr(link, "endpoint", ""))[0]
    return {"rows_wanted": wanted, "rows_missing": wanted - here, "rows_dial": address}
