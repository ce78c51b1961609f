"""Recurrent state: in chunks, across episodes, to the next holder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from actor_kit import CounterEngine, Rig, ScriptedHub, feed


def test_recurrent_state_travels_and_is_zeroed_at_episode_starts(tmp_path: Path) -> None:
    hub, engine = ScriptedHub([3, 5]), CounterEngine(state=True)
    rig = Rig(tmp_path, [hub], engine=engine, feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 2)
    first, second = (c["carry"].view(np.float32) for c in rig.store.chunks[:2])
    assert first.tolist() == [[0, 0], [0, 0]]
    # The second chunk begins at (1, 1) and (0, 4): that many decisions have gone into the state.
    assert second.tolist() == [[1, 0.5], [4, 2]]
    for act in hub.acts:
        assert act.carry is not None and act.carry.dtype == np.uint8 and act.carry.shape == (2, 8)
    assert [a.carry.view(np.float32)[0, 0] for a in hub.acts[:5]] == [1, 2, 3, 1, 2]


def test_recurrent_state_of_parked_decisions(tmp_path: Path) -> None:
    late = {0: [1], 1: [], 2: [0]}
    hub, engine = ScriptedHub([50, 50], late=lambda tick: late[tick % 3]), CounterEngine(state=True)
    rig = Rig(tmp_path, [hub], engine=engine, feed=feed(4))
    rig.run(lambda: len(rig.store.chunks) >= 6)
    for chunk in rig.store.chunks:
        carry = chunk["carry"].view(np.float32)
        for row, length in enumerate(chunk["lengths"]):
            if length:
                assert carry[row, 0] == chunk["step"][0, row], "one decision per step went into it"


def test_the_next_holder_goes_on_with_the_carry(tmp_path: Path) -> None:
    hub = ScriptedHub([50, 50])
    first = Rig(tmp_path, [hub], engine=CounterEngine(state=True), feed=feed(4))
    first.run(lambda: len(hub.acts) == 7)
    first.actor.holdings.close("leaving")
    assert hub.carry is not None
    (tmp_path / "second").mkdir()
    second = Rig(tmp_path / "second", [], engine=CounterEngine(state=True), feed=feed(4))
    second.hubs = [hub]
    second.actor.holdings._connect = lambda _: hub.actor_end
    hub.actor_end.closed = False
    second.actor.take(hub.name, hub.name)
    second.run(lambda: len(second.store.chunks) >= 1)
    chunk = second.store.chunks[0]
    assert chunk["carry"].view(np.float32)[:, 0].tolist() == chunk["step"][0].tolist() == [7, 7]
