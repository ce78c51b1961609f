"""Cases of image_preprocess: one pixel, odd sizes, windows at and beyond the edge, larger and smaller."""

from __future__ import annotations

import torch
from torch.nn import functional

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.image_preprocess import image_preprocess

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def pictures(num: int, height: int, width: int, channels: int = 3) -> torch.Tensor:
    """Random uint8 [num, height, width, channels]."""
    source = generator(height * 1000 + width)
    return torch.randint(0, 256, (num, height, width, channels), generator=source, dtype=torch.uint8)


def _case(name: str, images: torch.Tensor, **others: object) -> Case:
    return Case(name, lambda dtype: {"images": images.clone(), "dtype": dtype, **others})


def _random_crops(dtype: torch.dtype) -> Arguments:
    offsets = torch.randint(-2, 8, (5, 2), generator=generator(2))
    return {
        "images": pictures(5, 14, 11), "crop": (9, 8), "size": (6, 12), "offsets": offsets, "mean": MEAN,
        "std": STD, "dtype": dtype,
    }  # fmt: skip


CASES = [
    _case("a-pixel", pictures(1, 1, 1, 1)),
    _case("as-they-are", pictures(3, 7, 5), mean=MEAN, std=STD),
    _case("smaller", pictures(2, 23, 31), size=(9, 8), mean=0.5, std=0.5),
    _case("larger", pictures(2, 5, 4, 4), size=(17, 9)),
    _case("a-row-to-a-column", pictures(2, 1, 9, 2), size=(7, 1)),
    _case("middle", pictures(2, 10, 13, 1), crop=(6, 6)),
    Case("random-crops", _random_crops),
]


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: {"images": pictures(2, 5, 6)} | changed, dtypes=(torch.float32,))


REFUSED = [
    _refused("floats", images=torch.zeros(2, 5, 6, 3)),
    _refused("one-image", images=torch.zeros(5, 6, 3, dtype=torch.uint8)),
    _refused("channels-first", images=torch.zeros(2, 3, 64, 64, dtype=torch.uint8)),
    _refused("crop-too-large", crop=(5, 7)),
    _refused("crop-of-nothing", crop=(0, 3)),
    _refused("size-of-nothing", size=(0, 3)),
    _refused("offsets-for-one", offsets=torch.zeros(1, 2, dtype=torch.int64)),
    _refused("offsets-of-floats", offsets=torch.zeros(2, 2)),
    _refused("mean-of-two-channels", mean=(0.5, 0.5)),
    _refused("std-0", std=0.0),
    _refused("dtype-of-integers", dtype=torch.int32),
]


def black_and_white_by_hand() -> None:
    """With mean and std 0.5, black is -1 and white is 1; channels come first."""
    images = torch.zeros(1, 2, 2, 3, dtype=torch.uint8)
    images[0, 0, 1, 2] = 255
    wanted = torch.full((1, 3, 2, 2), -1.0)
    wanted[0, 2, 0, 1] = 1.0
    torch.testing.assert_close(image_preprocess(images, mean=0.5, std=0.5), wanted)


def constant_images_stay_constant() -> None:
    """Whatever the size."""
    images = torch.full((2, 9, 7, 3), 51, dtype=torch.uint8)
    found = image_preprocess(images, size=(4, 13))
    torch.testing.assert_close(found, torch.full((2, 3, 4, 13), 0.2))


def halving_averages_four_pixels() -> None:
    """Centres of the new pixels lie between the old ones."""
    images = pictures(2, 8, 6)
    wanted = functional.avg_pool2d(images.permute(0, 3, 1, 2).float() / 255, 2)
    torch.testing.assert_close(image_preprocess(images, size=(4, 3)), wanted)


def a_crop_is_a_part_of_the_whole() -> None:
    """Offsets beyond the edge are moved to it."""
    images = pictures(2, 9, 8)
    whole = image_preprocess(images)
    found = image_preprocess(images, crop=(4, 5), offsets=torch.tensor([[2, 1], [99, -7]]))
    torch.testing.assert_close(found[0], whole[0, :, 2:6, 1:6])
    torch.testing.assert_close(found[1], whole[1, :, 5:9, 0:5])


IDENTITIES = [
    black_and_white_by_hand,
    constant_images_stay_constant,
    halving_averages_four_pixels,
    a_crop_is_a_part_of_the_whole,
]


def _bench(num: int, before: int, after: int, quick: bool = False) -> Bench:
    def make(dtype: torch.dtype) -> Arguments:
        return {
            "images": pictures(num, before, before), "size": (after, after), "mean": MEAN, "std": STD,
            "dtype": dtype,
        }  # fmt: skip

    return Bench(
        f"{num}x{before}-{after}",
        make,
        num_bytes=lambda itemsize: num * 3 * (before**2 + after**2 * itemsize),
        quick=quick,
    )


BENCH = [
    _bench(256, 224, 224),
    _bench(256, 256, 224),
    _bench(16, 84, 84, quick=True),
    _bench(16, 96, 64, quick=True),
]
