"""Even spread, few moves, increasing numbers, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus_broker.registry.assignments import Assignments, Offer
from rollbus_wire.messages import Assign, Release

HUB = "ipc://hub"
OFFERS = {f"s{i}": Offer("hub", HUB) for i in range(5)}


def at_hub(*names):
    """What an actor says that it holds."""
    return dict.fromkeys(names, HUB)


def confirm(assignments, orders):
    held = {}
    for actor, name in ((a, s) for s, a in assignments.holders().items()):
        held.setdefault(actor, []).append(name)
    for actor, names in held.items():
        assignments.listed(actor, at_hub(*names))


def count(assignments):
    counts = {}
    for actor in assignments.holders().values():
        counts[actor] = counts.get(actor, 0) + 1
    return counts


def test_even_spread_and_increasing_numbers():
    a = Assignments(7, 0.5)
    orders = a.plan(OFFERS, ["x", "y"], 0.0)
    assert count(a) == {"x": 3, "y": 2}
    assert [o.message.assignment for o in orders] == [[7, n] for n in range(1, 6)]


def test_nothing_is_assigned_during_the_grace_time_and_reports_are_adopted():
    a = Assignments(2, 0.5)
    a.listed("x", at_hub("s0", "s1", "s2"))
    assert a.plan(OFFERS, ["x", "y"], 0.0, assign=False) == []
    orders = a.plan(OFFERS, ["x", "y"], 3.0)
    assert {(o.actor, o.message.slice) for o in orders} == {("y", "s3"), ("y", "s4")}
    assert all(isinstance(o.message, Assign) for o in orders)


def test_repeated_until_the_heartbeat_lists_it():
    a = Assignments(1, 0.5)
    one = {"s0": OFFERS["s0"]}
    (first,) = a.plan(one, ["x"], 0.0)
    assert a.plan(one, ["x"], 0.4) == []
    (again,) = a.plan(one, ["x"], 0.6)
    assert again == first
    a.listed("x", at_hub("s0"))
    assert a.plan(one, ["x"], 9.0) == []


def test_a_newcomer_gets_its_share_by_release_and_as_few_moves_as_possible():
    a = Assignments(1, 0.5)
    four = {k: OFFERS[k] for k in ("s0", "s1", "s2", "s3")}
    confirm(a, a.plan(four, ["x"], 0.0))
    orders = a.plan(four, ["x", "y"], 1.0)
    assert [type(o.message) for o in orders] == [Release, Release] and a.moves == 2
    for order in orders:
        a.released("x", order.message.slice, order.message.assignment, 1.1)
    given_ = a.plan(four, ["x", "y"], 1.2)
    assert [(o.actor, type(o.message)) for o in given_] == [("y", Assign)] * 2
    confirm(a, given_)
    assert a.plan(four, ["x", "y"], 2.0) == []


def test_release_is_repeated():
    a = Assignments(1, 0.5)
    two = {k: OFFERS[k] for k in ("s0", "s1")}
    confirm(a, a.plan(two, ["x"], 0.0))
    confirm(a, a.plan({**two, "s2": OFFERS["s2"]}, ["x"], 0.5))
    (order,) = a.plan({**two, "s2": OFFERS["s2"]}, ["x", "y"], 1.0)
    assert a.plan({**two, "s2": OFFERS["s2"]}, ["x", "y"], 1.2) == []
    assert a.plan({**two, "s2": OFFERS["s2"]}, ["x", "y"], 1.6) == [order]


def test_lost_holder_is_replaced_at_once():
    a = Assignments(1, 0.5)
    confirm(a, a.plan(OFFERS, ["x", "y"], 0.0))
    a.lost("x")
    orders = a.plan(OFFERS, ["y"], 0.1)
    assert len(orders) == 3 and all(o.actor == "y" for o in orders)


def test_refused_assignment_rests_and_gets_a_new_number():
    a = Assignments(1, 0.5)
    one = {"s0": OFFERS["s0"]}
    (order,) = a.plan(one, ["x"], 0.0)
    a.released("x", "s0", order.message.assignment, 0.1)
    assert a.plan(one, ["x"], 0.2) == []
    (again,) = a.plan(one, ["x"], 0.7)
    assert again.message.assignment == [1, 2]


def test_slices_of_a_replaced_hub_are_released_then_assigned():
    a = Assignments(1, 0.5)
    confirm(a, a.plan({"s0": OFFERS["s0"]}, ["x"], 0.0))
    new = {"s0": Offer("hub-2", "ipc://new")}
    (order,) = a.plan(new, ["x"], 1.0)
    assert isinstance(order.message, Release)
    a.released("x", "s0", order.message.assignment, 1.1)
    (order,) = a.plan(new, ["x"], 1.2)
    assert isinstance(order.message, Assign) and order.message.endpoint == "ipc://new"


@pytest.mark.parametrize("first", ["actor", "hub"])
def test_what_is_held_of_a_hub_that_died_with_the_broker_is_released_and_assigned_anew(first):
    """Both are killed at once: the new broker has never heard of the old hub, the actor waits for it."""
    a = Assignments(2, 0.5)
    new, held = {"s0": Offer("hub-2", "ipc://new")}, {"s0": "ipc://old"}
    if first == "actor":
        a.listed("x", held)
        assert a.plan({}, ["x"], 0.0, assign=False) == []
    else:
        assert a.plan(new, [], 0.0, assign=False) == []
        a.listed("x", held)
    (order,) = a.plan(new, ["x"], 0.1, assign=False)
    assert order.actor == "x" and isinstance(order.message, Release)
    a.listed("x", held)  # it takes a moment
    assert a.plan(new, ["x"], 0.2, assign=False) == []
    a.released("x", "s0", order.message.assignment, 0.3)
    a.listed("x", {})
    (order,) = a.plan(new, ["x"], 3.0)
    assert isinstance(order.message, Assign) and order.message.endpoint == "ipc://new"
    a.listed("x", {"s0": "ipc://new"})
    assert a.plan(new, ["x"], 9.0) == []


def test_a_draining_actor_is_relieved():
    a = Assignments(1, 0.5)
    confirm(a, a.plan({"s0": OFFERS["s0"]}, ["x"], 0.0))
    (order,) = a.plan({"s0": OFFERS["s0"]}, ["y"], 1.0, leaving=["x"])
    assert order.actor == "x" and isinstance(order.message, Release)


def pairs(num: int, slices: int = 1):
    """Slices of hubs that each share their process with an actor."""
    return {f"h{h}/{i}": Offer(f"h{h}", HUB, f"a{h}") for h in range(num) for i in range(slices)}


def obey(assignments, orders, now):
    for order in orders:
        if isinstance(order.message, Release):
            assignments.released(order.actor, order.message.slice, order.message.assignment, now)
    confirm(assignments, [])


def test_slices_go_to_the_actor_in_their_own_process():
    a = Assignments(1, 0.5)
    a.plan(pairs(3, 2), ["a2", "a0", "a1"], 0.0)
    assert a.holders() == {f"h{h}/{i}": f"a{h}" for h in range(3) for i in range(2)}


def test_a_latecomer_gets_those_of_its_process():
    a = Assignments(1, 0.5)
    confirm(a, a.plan(pairs(2, 2), ["a1"], 0.0))
    for now in (1.0, 2.0, 3.0):
        obey(a, a.plan(pairs(2, 2), ["a0", "a1"], now), now)
    assert a.holders() == {"h0/0": "a0", "h0/1": "a0", "h1/0": "a1", "h1/1": "a1"} and a.moves == 2


def test_what_is_held_crosswise_is_exchanged_once():
    a = Assignments(1, 0.5)
    a.listed("a1", at_hub("h0/0"))
    a.listed("a0", at_hub("h1/0"))
    for now in (1.0, 2.0, 3.0, 4.0):
        obey(a, a.plan(pairs(2), ["a0", "a1"], now), now)
    assert a.holders() == {"h0/0": "a0", "h1/0": "a1"} and a.moves == 2


def test_an_even_spread_goes_before_nearness():
    a = Assignments(1, 0.5)
    a.plan(pairs(1, 4), ["a0", "a7"], 0.0)
    assert count(a) == {"a0": 2, "a7": 2}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["join", "lose", "hub"]), st.integers(0, 5)), max_size=25))
def test_any_history_ends_even_with_one_holder_each(history):
    """Actors that do what they are told: after each change the spread settles within a few turns."""
    a, now, numbers = Assignments(1, 0.5), 0.0, []
    actors, offers = ["a0"], {}
    held = {}
    for kind, n in [*history, ("hub", 0)]:
        if kind == "join" and f"a{n}" not in actors:
            actors.append(f"a{n}")
        elif kind == "lose" and f"a{n}" in actors and len(actors) > 1:
            actors.remove(f"a{n}")
            held.pop(f"a{n}", None)
            a.lost(f"a{n}")
        elif kind == "hub":
            offers |= {f"h{n}-{i}": Offer(f"h{n}", HUB, f"a{n}") for i in range(3)}
        for _ in range(12):
            now += 1.0
            for order in a.plan(offers, sorted(actors), now):
                mine = held.setdefault(order.actor, set())
                if isinstance(order.message, Assign):
                    mine.add(order.message.slice)
                    numbers.append(order.message.assignment[1])
                else:
                    mine.discard(order.message.slice)
                    a.released(order.actor, order.message.slice, order.message.assignment, now)
            for actor in actors:
                a.listed(actor, at_hub(*sorted(held.get(actor, ()))))
        everywhere = [s for actor in actors for s in held.get(actor, ())]
        assert sorted(everywhere) == sorted(offers)
        counts = [len(held.get(actor, ())) for actor in actors]
        assert max(counts) - min(counts) <= 1
    assert numbers == sorted(numbers)
