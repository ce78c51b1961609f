"""Moore Threads GPUs, through the package torch_musa."""

from __future__ import annotations

from rollbus_accel.backends.base import Backend

backend = Backend(
    "musa", "musa", visible_devices="MUSA_VISIBLE_DEVICES", collective="mccl", package="torch_musa"
)
