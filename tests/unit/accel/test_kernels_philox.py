"""The generator against the published vectors, and as every flavour must reproduce it."""

from __future__ import annotations

import pytest
import torch

from rollbus_accel.kernels import philox

#: counter, key, result of philox4x32-10: kat_vectors of Random123 (Salmon et al., 2011).
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str) -> None:
    found = philox._rounds(words(counter), words(key))  # type: ignore[arg-type]
    assert [int(x) for x in found] == [int(x) for x in words(result)]


def test_the_seed_is_the_key_low_word_first() -> None:
    seed = torch.tensor([0x123456789ABCDEF0, -1])
    zero = torch.zeros(1, dtype=torch.int64)
    for row in range(2):
        low, high = seed[row : row + 1] & 0xFFFFFFFF, (seed[row : row + 1] >> 32) & 0xFFFFFFFF
        wanted = philox._rounds((zero + 7, zero, zero, zero), (low, high))
        found = philox.philox(seed, torch.tensor([7, 7]))
        assert [int(x[row]) for x in found] == [int(x) for x in wanted]


def test_columns_are_dealt_in_quarters() -> None:
    seeds = torch.arange(3)
    lanes = philox.philox(seeds[:, None], torch.arange(2)[None])
    bits = torch.cat(lanes, 1)[:, :7]
    wanted = ((bits >> 9).double() + 0.5) / 2**23
    assert torch.equal(philox.uniform(seeds, 7).double(), wanted)
    assert torch.equal(philox.uniform(seeds.view(torch.uint64), 7), philox.uniform(seeds, 7))


def test_uniform_never_reaches_its_ends() -> None:
    ends = torch.tensor([0, (1 << 32) - 1])
    values = ((ends >> 9).float() + 0.5) * 2.0**-23
    assert 0 < values[0] and values[1] < 1
    u = philox.uniform(torch.arange(2000), 50)
    assert 0 < u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 5 * (1 / 12 / 1e5) ** 0.5
    assert abs(u.var() - 1 / 12) < 1e-3


def test_normal_has_the_moments_of_one() -> None:
    z = philox.normal(torch.arange(5000), 30).double()
    error = 1 / z.numel() ** 0.5
    assert abs(z.mean()) < 5 * error and abs(z.var() - 1) < 8 * error
    assert abs((z**3).mean()) < 20 * error and abs((z**4).mean() - 3) < 50 * error


def test_numba_gives_the_same_integers() -> None:
    loops = pytest.importorskip("rollbus_accel.kernels.random_loops")
    import numpy as np

    seeds = torch.tensor([0, -1, 0x123456789ABCDEF0])
    for row, seed in enumerate(seeds.tolist()):
        for counter in (0, 1, 77):
            wanted = [int(x[row]) for x in philox.philox(seeds, torch.full((3,), counter))]
            found = loops.philox.py_func(np.uint64(seed & (1 << 64) - 1), np.uint64(counter))
            assert [int(x) for x in found] == wanted
