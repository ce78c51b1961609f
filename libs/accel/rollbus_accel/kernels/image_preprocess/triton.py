# mypy: allow-untyped-defs
"""Images to network input: crop, bilinear resize, normalisation and layout in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rollbus_accel.kernels import launch
from rollbus_accel.kernels.base import Variant

BLOCK = 512


@triton.jit
def preprocess_kernel(
    images, offsets, scale, shift, out,
    height, width, crop_height, crop_width, out_height, out_width, step_y, step_x,
    image_stride, row_stride,
    CHANNELS: tl.constexpr, RESIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK output pixels of one image a program, all channels of each."""
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < out_height * out_width
    y, x = pixel // out_width, pixel % out_width
    top = tl.minimum(tl.maximum(tl.load(offsets + image * 2), 0), height - crop_height).to(tl.int32)
    left = tl.minimum(tl.maximum(tl.load(offsets + image * 2 + 1), 0), width - crop_width).to(tl.int32)
    first = images + image * image_stride
    target = out + image * CHANNELS * out_height * out_width + pixel
    if RESIZE:
        # Pixel centres: align_corners=False of torch's interpolate.
        at_y = tl.maximum((y.to(tl.float32) + 0.5) * step_y - 0.5, 0.0)
        at_x = tl.maximum((x.to(tl.float32) + 0.5) * step_x - 0.5, 0.0)
        y, x = at_y.to(tl.int32), at_x.to(tl.int32)
        part_y, part_x = at_y - y.to(tl.float32), at_x - x.to(tl.float32)
        upper = first + (top + y).to(tl.int64) * row_stride
        lower = first + (top + tl.minimum(y + 1, crop_height - 1)).to(tl.int64) * row_stride
        near = (left + x) * CHANNELS
        far = (left + tl.minimum(x + 1, crop_width - 1)) * CHANNELS
        for channel in tl.static_range(CHANNELS):
            a = tl.load(upper + near + channel, mask=inside, other=0).to(tl.float32)
            b = tl.load(upper + far + channel, mask=inside, other=0).to(tl.float32)
            c = tl.load(lower + near + channel, mask=inside, other=0).to(tl.float32)
            d = tl.load(lower + far + channel, mask=inside, other=0).to(tl.float32)
            above, below = a + (b - a) * part_x, c + (d - c) * part_x
            value = (above + (below - above) * part_y) * tl.load(scale + channel) + tl.load(shift + channel)
            place = target + channel * out_height * out_width
            tl.store(place, value.to(out.dtype.element_ty), mask=inside)
    else:
        source = first + (top + y).to(tl.int64) * row_stride + (left + x) * CHANNELS
        for channel in tl.static_range(CHANNELS):
            value = tl.load(source + channel, mask=inside, other=0).to(tl.float32)
            value = value * tl.load(scale + channel) + tl.load(shift + channel)
            place = target + channel * out_height * out_width
            tl.store(place, value.to(out.dtype.element_ty), mask=inside)


def image_preprocess(
    images: Tensor,
    offsets: Tensor,
    crop: Sequence[int],
    size: Sequence[int],
    scale: Tensor,
    shift: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """As the reference."""
    images = images.contiguous()
    num, height, width, channels = images.shape
    out = torch.empty(num, channels, *size, dtype=dtype, device=images.device)
    if not out.numel():
        return out
    pixels = size[0] * size[1]
    block = launch.block(pixels, most=BLOCK)
    preprocess_kernel[(num, launch.ceil_div(pixels, block))](
        images, offsets.contiguous(), scale, shift, out,
        height, width, *crop, *size, crop[0] / size[0], crop[1] / size[1],
        images.stride(0), images.stride(1),
        CHANNELS=channels, RESIZE=tuple(crop) != tuple(size), BLOCK=block,
        num_warps=launch.num_warps(block, launch.properties(images.device).warp_size, per_thread=4),
    )  # fmt: skip
    return out


def _variant(number: str, channels: int, resize: bool) -> Variant:
    pointers = {"images": "*u8", "offsets": "*i64", "scale": "*fp32", "shift": "*fp32", "out": f"*{number}"}
    names = ("height", "width", "crop_height", "crop_width", "out_height", "out_width")
    steps = {"step_y": "fp32", "step_x": "fp32", "image_stride": "i32", "row_stride": "i32"}
    return Variant(
        f"{'resize' if resize else 'convert'}-{number}-{channels}", preprocess_kernel,
        pointers | {name: "i32" for name in names} | steps,
        {"CHANNELS": channels, "RESIZE": resize, "BLOCK": BLOCK},
    )  # fmt: skip


VARIANTS = [
    _variant(number, channels, resize)
    for resize in (True, False)
    for number in ("bf16", "fp32")
    for channels in (3, 1)
]
