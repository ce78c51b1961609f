"""Costs from files, and memory by arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbus_core.feed import Feed, TableConfig
from rollbus_core.plan import memory
from rollbus_core.plan.costs import ActorCosts, HubCosts, StageCosts, load_costs
from rollbus_core.plan.layouts import Host, Layout, Process
from rollbus_wire.errors import ConfigError

HUB, ACTOR = (
    HubCosts(tick_s=1e-4, row_s=1e-5, ending_s=2e-3, episode_s=1e-3),
    ActorCosts(turn_s=1e-4, tick_s=2e-5, row_s=1e-6),
)
COSTS = StageCosts(
    hub_fused=HUB, hub_apart=HUB, actor_fused=ACTOR, actor_apart=ACTOR, store_s=1e-4, update_s=0.1,
    learner_s=1e-3, step_bytes=100.0, weights_bytes=1000.0, batch_bytes=5000.0, shared_bytes=1e6,
    role_bytes={"process": 10.0, "hub": 1.0, "actor": 2.0, "learner": 3.0, "broker": 4.0, "launcher": 50.0},
)  # fmt: skip


def test_costs_are_sums_of_their_parts() -> None:
    ends = COSTS.ends(2, 10.0)
    assert ends == pytest.approx((0.19, 0.2))  # 1 - 0.9 squared
    assert HUB.at(8, ends) == pytest.approx(1e-4 + 8 * 1e-5 + 0.19 * 2e-3 + 0.2 * 1e-3)
    assert ACTOR.at(2, 16, ends) == pytest.approx(1e-4 + 2 * 2e-5 + 16 * 1e-6)


def test_rows_of_equal_length_end_together() -> None:
    together = COSTS.model_copy(update={"ending_share": 0.5})
    assert together.ends(2, 10.0) == pytest.approx((0.095, 0.2))


def test_a_file_gives_the_same_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(COSTS.model_dump_json())
    assert load_costs(path) == COSTS


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"update_s": -1.0}, "update_s: .*greater than or equal to 0.* came -1.0"),
        ({"updat_s": 1.0}, "updat_s"),
        ({"hub_fused": {"tick_s": "x"}}, "hub_fused.tick_s"),
    ],
)
def test_a_wrong_file_is_told_by_its_key(change: dict, said: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(COSTS.model_dump() | change))
    with pytest.raises(ConfigError, match=said):
        load_costs(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read.*--save"):
        load_costs(tmp_path / "none.json")


def test_memory_counts_imports_once_per_host() -> None:
    feed = Feed(table=TableConfig(batch_steps=64, max_lag=1), num_decisions=8)
    host = Host(2, (Process(("broker",)), Process(("hub", "actor")), Process(("learner",))), ((8,),))
    rows = memory.host_bytes(host, COSTS, feed, 1 << 16, first=True)
    assert rows == {
        "imports, once": 1e6, "broker-0": 14.0, "hub+actor-0": 13.0, "learner-0": 5013.0,
        "weights": 3000.0, "launcher": 50.0,
        # 64 steps x (32 kept + 2 begun) x 100 bytes = 217,600: four slabs.
        "slabs": 4 * 65536.0,
    }  # fmt: skip
    assert memory.largest(Layout((host,)), COSTS, feed, 1 << 16) == sum(rows.values())


def test_slabs_never_exceed_the_table() -> None:
    feed = Feed(table=TableConfig(sampler="replay", steps_per_update=8, max_bytes=1 << 20), num_decisions=8)
    assert memory.slab_bytes(COSTS, feed, 1 << 16) == 1 << 20
