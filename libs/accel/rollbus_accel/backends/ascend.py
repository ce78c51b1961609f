"""Huawei Ascend NPUs, through the package torch_npu."""

from __future__ import annotations

from rollbus_accel.backends.base import Backend, missing_package


class Ascend(Backend):
    """torch.npu; triton comes as a fork of its own."""

    def declines(self, flavour: str) -> str:
        if flavour == "triton":
            return missing_package("triton_ascend") and missing_package("triton")
        return super().declines(flavour)


backend = Ascend(
    "ascend", "npu", visible_devices="ASCEND_RT_VISIBLE_DEVICES", collective="hccl", package="torch_npu"
)
