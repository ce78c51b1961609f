"""Intel GPUs, which torch knows itself."""

from __future__ import annotations

from typing import Any

from rollbus_accel.backends.base import Backend


class Xpu(Backend):
    """torch.xpu in a build for XPU."""

    def missing_build(self, torch: Any) -> str:
        compiled = getattr(torch.xpu, "_is_compiled", lambda: True)
        if compiled():
            return ""
        return f"torch {torch.__version__} is not built for XPU; install an XPU build of torch"


backend = Xpu("xpu", "xpu", visible_devices="ZE_AFFINITY_MASK", collective="xccl")
