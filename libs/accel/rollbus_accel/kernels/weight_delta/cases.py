"""Cases of weight_delta: nothing, everything, elements at the ends of blocks, bits that compare equal."""

from __future__ import annotations

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.weight_delta import apply_delta, pack, unpack, weight_delta

TOLERANCE = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float64: 0.0, torch.int8: 0.0}
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int8)


def weights(*shape: int, dtype: torch.dtype, changed: float = 0.01) -> Arguments:
    """Random ``old`` and a copy in which a part of the elements is another."""
    source = generator(sum(shape))
    old = (50 * torch.randn(*shape, generator=source)).to(dtype)
    hit = torch.rand(*shape, generator=source) < changed
    return {"old": old, "new": torch.where(hit, old + 1, old)}


def _case(name: str, *shape: int, changed: float = 0.01) -> Case:
    return Case(name, lambda dtype: weights(*shape, dtype=dtype, changed=changed), dtypes=DTYPES)


def _at(size: int, *places: int) -> Case:
    def make(dtype: torch.dtype) -> Arguments:
        made = weights(size, dtype=dtype, changed=0.0)
        made["new"][list(places)] += 1
        return made

    return Case("at-" + "-".join(str(place) for place in places), make)


CASES = [
    _case("few", 37, 211),
    _case("none", 300, changed=0.0),
    _case("all", 101, changed=2.0),
    _case("half", 5000, changed=0.5),
    _case("empty", 0),
    _case("scalar-like", 1, changed=2.0),
    _at(9000, 0, 31, 32, 4095, 4096, 8191, 8999),
]


def _refused(name: str, **changed: object) -> Case:
    return Case(name, lambda dtype: weights(4, 3, dtype=dtype) | changed, dtypes=(torch.float32,))


REFUSED = [
    _refused("shapes-differ", new=torch.zeros(3, 4)),
    _refused("dtypes-differ", new=torch.zeros(4, 3, dtype=torch.float16)),
    _refused("complex", old=torch.zeros(4, dtype=torch.complex64), new=torch.zeros(4, dtype=torch.complex64)),
]


def applying_a_delta_makes_the_new_tensor() -> None:
    """Also after a way through bytes; bits are equal, NaN included."""
    for dtype in DTYPES:
        made = weights(33, 77, dtype=dtype, changed=0.05)
        if dtype.is_floating_point:
            made["new"][3, 4] = torch.nan
        target = made["old"].clone()
        data = pack(*weight_delta(**made))
        apply_delta(target, *unpack(data, target.numel(), dtype))
        assert torch.equal(target.view(torch.uint8), made["new"].view(torch.uint8))


def bits_count_and_not_values() -> None:
    """-0.0 is not 0.0, and a NaN that stays is no change."""
    old = torch.tensor([0.0, torch.nan, 1.0, 2.0])
    new = torch.tensor([-0.0, torch.nan, 1.0, 3.0])
    indices, values = weight_delta(old, new)
    assert indices.tolist() == [0, 3] and str(values.tolist()) == "[-0.0, 3.0]"


def one_percent_is_a_thirtieth_of_the_bytes() -> None:
    """bfloat16 weights with 1 % changed at random: four bytes an element instead of two hundred."""
    made = weights(300_000, dtype=torch.bfloat16, changed=0.01)
    data = pack(*weight_delta(**made))
    assert len(data) < made["new"].nbytes / 30


IDENTITIES = [
    applying_a_delta_makes_the_new_tensor,
    bits_count_and_not_values,
    one_percent_is_a_thirtieth_of_the_bytes,
]


def _bench(num: int, quick: bool = False) -> Bench:
    return Bench(
        f"{num >> 20}Mi-1%",
        lambda dtype: weights(num, dtype=dtype),
        num_bytes=lambda itemsize: 2 * num * itemsize,
        quick=quick,
    )


BENCH = [_bench(128 << 20), _bench(1 << 20, quick=True)]
