"""Slices go where the registry gives them."""

from __future__ import annotations

import itertools

import pytest

from rollbus_broker.registry.assignments import Assignments, Offer
from rollbus_core.plan.layouts import assign


@pytest.mark.parametrize(
    ("near", "num_actors", "expected"),
    [
        ([None] * 4, 2, [0, 1, 0, 1]),
        ([0, 0, 1, 1], 2, [0, 0, 1, 1]),  # each in its own process, not in turn
        ([0, 0, 0, 0], 2, [0, 0, 1, 1]),  # an even spread goes before nearness
        ([0, 1, None], 2, [0, 1, 0]),
        ([None, 0, 1, 2], 3, [0, 0, 1, 2]),
    ],
)
def test_slices_go_near_while_the_spread_is_even(
    near: list[int | None], num_actors: int, expected: list[int]
) -> None:
    assert assign(near, num_actors) == expected


@pytest.mark.parametrize(
    ("hubs", "per_hub", "num_actors"), itertools.product((1, 2, 3), (1, 2, 3), (1, 2, 3))
)
def test_the_registry_does_the_same(hubs: int, per_hub: int, num_actors: int) -> None:
    """Hubs share processes with the actors of their number, as far as there are some."""
    near = [hub if hub < num_actors else None for hub in range(hubs) for _ in range(per_hub)]
    offers = {
        f"h{hub}/{index}": Offer(f"h{hub}", "e", f"a{hub}" if hub < num_actors else "")
        for hub in range(hubs)
        for index in range(per_hub)
    }
    registry = Assignments(1, 0.5)
    registry.plan(offers, [f"a{actor}" for actor in range(num_actors)], 0.0)
    holders = registry.holders()
    assert [holders[name] for name in sorted(offers)] == [f"a{actor}" for actor in assign(near, num_actors)]
