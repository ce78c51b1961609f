"""AMD GPUs. torch calls them ``cuda`` and its RCCL ``nccl``."""

from __future__ import annotations

from typing import Any

from rollbus_accel.backends.base import Backend


class Rocm(Backend):
    """torch.cuda in a build for ROCm."""

    def missing_build(self, torch: Any) -> str:
        if torch.version.hip:
            return ""
        return f"torch {torch.__version__} is not built for ROCm; install a ROCm build of torch"


backend = Rocm("rocm", "cuda", visible_devices="HIP_VISIBLE_DEVICES", collective="nccl")
