"""Which faults, in which order, on what: a pure function of the seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

#: Time from a recovery to the next fault.
GAP_S = (0.5, 2.5)


@dataclass(frozen=True)
class Fault:
    """One fault, ``gap_s`` after the last. Its injector chooses by the three numbers in [0, 1)."""

    number: int
    kind: str
    pick: float
    other: float
    amount: float
    gap_s: float

    def choose(self, options: Sequence[str]) -> str:
        """One of ``options``."""
        return options[int(self.pick * len(options))]

    def pair(self, options: Sequence[str]) -> tuple[str, str]:
        """Two different ones of ``options``."""
        first = self.choose(options)
        rest = [each for each in options if each != first]
        return first, rest[int(self.other * len(rest))]

    def between(self, low: float, high: float) -> float:
        """A number by ``amount``, such as a duration in seconds."""
        return low + self.amount * (high - low)


def faults(seed: int, kinds: Sequence[str]) -> Iterator[Fault]:
    """Faults without end: every kind once, in a new order each round."""
    generator, number = np.random.default_rng(seed), 0
    while True:
        for kind in generator.permutation(sorted(kinds)):
            number += 1
            pick, other, amount, gap = generator.random(4)
            yield Fault(number, str(kind), pick, other, amount, GAP_S[0] + gap * (GAP_S[1] - GAP_S[0]))
