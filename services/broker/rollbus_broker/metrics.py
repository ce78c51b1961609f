"""The broker's state as one immutable value, and that value as Prometheus metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

#: Roles that a run cannot do without.
NEEDED = ("hub", "actor", "learner")
_TABLE_GAUGES = (
    "chunks", "steps", "bytes", "max_bytes", "tickets", "outstanding_steps", "updates", "delivered",
    "waiting_tickets", "waiting_samples",
)  # fmt: skip
_NOT_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True)
class Snapshot:
    """What the loop publishes for the HTTP thread; nobody changes it afterwards."""

    ready: bool = False
    boot: int = 0
    members: tuple[dict[str, Any], ...] = ()
    tables: tuple[dict[str, Any], ...] = ()
    #: Plane -> error code -> arrivals refused.
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Role -> relayed messages that it did not read.
    unsent: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    #: Of the broker's own sockets: "plane/reason/role" -> refusals.
    refused: dict[str, int] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Who is not ready yet, for people."""
        found = [] if self.ready else ["broker (starting)"]
        for role in NEEDED:
            states = [f"{m['name']}: {m['state']}" for m in self.members if m["role"] == role]
            if not any(m["state"] == "ready" for m in self.members if m["role"] == role):
                found.append(f"{role} ({', '.join(states) or 'none has registered'})")
        return found


class SnapshotCollector(Collector):
    """Metrics of ``box[0]`` whenever somebody scrapes."""

    def __init__(self, box: list[Snapshot]) -> None:
        self._box = box

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self._box[0]
        up = GaugeMetricFamily("rollbus_member_up", "1 while the member is alive.", labels=["role", "member"])
        for member in snapshot.members:
            alive = member["state"] in ("starting", "ready", "draining")
            up.add_metric([member["role"], member["name"]], float(alive))
        yield up
        yield GaugeMetricFamily("rollbus_broker_boot", "Starts of the broker.", snapshot.boot)
        yield from _member_gauges(snapshot)
        yield from _table_metrics(snapshot)
        rejected = CounterMetricFamily(
            "rollbus_rejected_frames", "Arrivals refused by error code.", labels=["member", "plane", "code"]
        )
        for plane, codes in snapshot.rejected.items():
            for code, count in codes.items():
                rejected.add_metric(["broker-0", plane, code], count)
        for member in snapshot.members:
            for plane, code, count in _rejected(member["stats"].get("rejected")):
                rejected.add_metric([member["name"], plane, code], count)
        yield rejected
        yield _refused(snapshot)
        unsent = CounterMetricFamily(
            "rollbus_unsent_messages", "Relayed messages that a member did not read.", labels=["role"]
        )
        for role, count in snapshot.unsent.items():
            unsent.add_metric([role], count)
        yield unsent
        for name, count in snapshot.counts.items():
            yield CounterMetricFamily(f"rollbus_store_{name}", f"Store: {name}.", count)


def _rejected(stat: Any) -> Iterator[tuple[str, str, int]]:
    """(plane, code, count) of what a heartbeat says in ``rejected``."""
    for plane, codes in stat.items() if isinstance(stat, dict) else ():
        for code, count in codes.items() if isinstance(codes, dict) else ():
            if isinstance(count, int):
                yield plane, code, count


def _refused(snapshot: Snapshot) -> CounterMetricFamily:
    """Who was not let in, by the broker and by members that listen themselves."""
    labels = ["member", "plane", "reason", "role"]
    metric = CounterMetricFamily(
        "rollbus_refused", "Refusals for lack of a key, or of its rights.", labels=labels
    )
    counts = {member["name"]: member["stats"].get("refused") for member in snapshot.members}
    for name, refused in {"broker-0": snapshot.refused, **counts}.items():
        for what, count in refused.items() if isinstance(refused, dict) else ():
            parts = str(what).split("/")
            if len(parts) == 3 and isinstance(count, int):
                metric.add_metric([name, *parts], count)
    return metric


def _member_gauges(snapshot: Snapshot) -> Iterator[Metric]:
    """rollbus_<role>_<stat>{member=} for every number in a heartbeat's stats.

    Of a stat "name/task": rollbus_<role>_task_<name>{member=, task=}.
    """
    gauges: dict[str, GaugeMetricFamily] = {}
    for member in snapshot.members:
        for stat, value in member["stats"].items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            what, _, task = stat.partition("/")
            labels, of_task, each = {"member": member["name"]}, "", ""
            if task:
                labels, of_task, each = labels | {"task": task}, "task_", ", per task"
            name = "rollbus_" + _NOT_A_NAME.sub("_", f"{member['role']}_{of_task}{what}")
            if name not in gauges:
                text = f"Heartbeat stat {what} of {member['role']}s{each}."
                gauges[name] = GaugeMetricFamily(name, text, labels=list(labels))
            gauges[name].add_metric(list(labels.values()), float(value))
    yield from gauges.values()


def _table_metrics(snapshot: Snapshot) -> Iterator[Metric]:
    for key in _TABLE_GAUGES:
        gauge = GaugeMetricFamily(f"rollbus_table_{key}", f"Table: {key}.", labels=["table"])
        for table in snapshot.tables:
            gauge.add_metric([table["table"]], table[key])
        yield gauge
    full = GaugeMetricFamily("rollbus_table_full", "1 while tickets wait for room.", labels=["table"])
    steps = CounterMetricFamily("rollbus_table_inserted_steps", "Steps ever inserted.", labels=["table"])
    dropped = CounterMetricFamily(
        "rollbus_dropped_chunks", "Chunks dropped by reason.", labels=["table", "reason"]
    )
    for table in snapshot.tables:
        full.add_metric([table["table"]], float(table["state"] != "open"))
        steps.add_metric([table["table"]], table["total_steps"])
        for reason, count in table["dropped"].items():
            dropped.add_metric([table["table"], reason], count)
    yield from (full, steps, dropped)


def collector_registry(box: list[Snapshot]) -> CollectorRegistry:
    """A Prometheus registry of the broker alone."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(box))
    return registry
