"""NVIDIA GPUs."""

from __future__ import annotations

from typing import Any

from rollbus_accel.backends.base import Backend


class Cuda(Backend):
    """torch.cuda in a build for CUDA."""

    def missing_build(self, torch: Any) -> str:
        if torch.version.cuda:
            return ""
        return f"torch {torch.__version__} is not built for CUDA; install a CUDA build of torch"


backend = Cuda("cuda", "cuda", visible_devices="CUDA_VISIBLE_DEVICES", collective="nccl")
