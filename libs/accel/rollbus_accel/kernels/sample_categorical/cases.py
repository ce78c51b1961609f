"""Cases of categorical sampling."""

from __future__ import annotations

import math

import torch

from rollbus_accel.kernels.benches import Bench
from rollbus_accel.kernels.cases import Arguments, Case, generator
from rollbus_accel.kernels.sample_categorical import sample_categorical

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5}


def rows(num_rows: int, num_columns: int, dtype: torch.dtype) -> Arguments:
    """Random logits and seeds of all 64 bits; one logit in ten is minus infinity, never the first."""
    source = generator(num_rows + num_columns)
    logits = 2.0 * torch.randn(num_rows, num_columns, generator=source)
    logits[:, 1:][torch.rand(num_rows, num_columns - 1, generator=source) < 0.1] = -torch.inf
    seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (num_rows,), generator=source)
    return {"logits": logits.to(dtype), "seeds": seeds}


def _sized(num_rows: int, num_columns: int) -> Case:
    return Case(f"{num_rows}x{num_columns}", lambda dtype: rows(num_rows, num_columns, dtype))


def _unsigned(dtype: torch.dtype) -> Arguments:
    made = rows(5, 6, dtype)
    return made | {"seeds": made["seeds"].view(torch.uint64)}


CASES = [_sized(1, 1), _sized(3, 2), _sized(130, 5), _sized(7, 67), _sized(2, 5003)]
CASES.append(Case("uint64-seeds", _unsigned, dtypes=(torch.float32,)))


def _refused(**changed: torch.Tensor) -> Case:
    return Case("-".join(changed), lambda dtype: rows(4, 3, dtype) | changed)


REFUSED = [
    _refused(logits=torch.zeros(4)),
    _refused(logits=torch.zeros(4, 0)),
    _refused(logits=torch.zeros(4, 3, dtype=torch.int64)),
    _refused(seeds=torch.zeros(3, dtype=torch.int64)),
    _refused(seeds=torch.zeros(4, dtype=torch.int32)),
]


def frequencies_are_the_probabilities() -> None:
    """Of 4096 rows with logits of 1/2, 1/3, 1/6: within 4.5 standard errors."""
    probs = torch.tensor([1 / 2, 1 / 3, 1 / 6])
    num = 4096
    choice, log_prob, entropy = sample_categorical(probs.log().expand(num, 3), torch.arange(num))
    share = torch.bincount(choice, minlength=3) / num
    assert ((share - probs).abs() < 4.5 * (probs * (1 - probs) / num).sqrt()).all(), share
    torch.testing.assert_close(log_prob, probs.log()[choice])
    torch.testing.assert_close(entropy, (-(probs * probs.log()).sum()).expand(num))


def rows_do_not_depend_on_their_neighbours() -> None:
    """A row alone gives what it gives in a batch."""
    made = rows(9, 21, torch.float32)
    whole = sample_categorical(**made)
    for row in (0, 4, 8):
        alone = sample_categorical(made["logits"][row : row + 1], made["seeds"][row : row + 1])
        assert int(alone[0][0]) == int(whole[0][row])
        torch.testing.assert_close(alone[1][0], whole[1][row])


def certain_and_even_choices() -> None:
    """One finite logit: chosen, log-prob 0, entropy 0. Equal logits: log-prob -log K, entropy log K."""
    alone = torch.full((3, 5), -torch.inf)
    alone[:, 2] = -7.0
    choice, log_prob, entropy = sample_categorical(alone, torch.arange(3))
    assert choice.tolist() == [2, 2, 2] and not log_prob.any() and not entropy.any()
    _, log_prob, entropy = sample_categorical(torch.full((3, 5), 1e4), torch.arange(3))
    torch.testing.assert_close(log_prob, torch.full((3,), -math.log(5.0)), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(entropy, torch.full((3,), math.log(5.0)), rtol=1e-3, atol=1e-3)


IDENTITIES = [
    frequencies_are_the_probabilities,
    rows_do_not_depend_on_their_neighbours,
    certain_and_even_choices,
]


def _bench(num_rows: int, num_columns: int, quick: bool = False) -> Bench:
    size = num_rows * num_columns
    return Bench(
        f"{num_rows}x{num_columns}",
        lambda dtype: rows(num_rows, num_columns, dtype),
        num_bytes=lambda itemsize: size * itemsize + num_rows * 24,
        quick=quick,
    )


BENCH = [_bench(4096, 32768), _bench(65536, 18), _bench(256, 1024, quick=True)]
