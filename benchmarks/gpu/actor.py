"""The actor's path: observations on the host to actions on the host, by its engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu.clock import Clock
from gpu.policies import observations, policy
from rollbus_actor.engines.base import make_engine
from rollbus_policies.base import Ask
from rollbus_wire.errors import ConfigError

BATCHES, QUICK_BATCHES = (1, 64, 1024), (1, 32)
MODES = ("eager", "graphs")


@dataclass(frozen=True)
class Acting:
    """One policy at one batch size; without graphs on the device their time is None."""

    policy: str
    batch: int
    eager_ms: float
    graphs_ms: float | None
    #: Of the faster one.
    rows_per_s: float
    #: Why there are no graphs; "" if there are.
    reason: str


def measure(name: str, batch: int, clock: Clock) -> Acting:
    """Forward, sample and log-prob of ``batch`` rows of policy ``name``, eager and as a captured graph."""
    obs, seeds = {"obs": observations(name, batch)}, np.arange(batch, dtype=np.uint64)
    ask = Ask("sample", want=("log_prob", "value"))
    calls, reason = {}, ""
    for mode in MODES:
        try:
            engine = make_engine("torch_local", policy(name), device=clock.device, options={"mode": mode})
            engine.pin((0, 0))  # type: ignore[attr-defined]
            engine.act(obs, None, ask, seeds)
        except (ConfigError, RuntimeError) as error:
            reason = f"{mode}: {error}"
            continue
        calls[mode] = lambda engine=engine: engine.act(obs, None, ask, seeds)
    seconds = clock.seconds(calls)
    graphs = seconds.get("graphs")
    return Acting(
        name, batch, 1e3 * seconds["eager"], None if graphs is None else 1e3 * graphs,
        rows_per_s=batch / min(seconds.values()), reason=reason,
    )  # fmt: skip


def batches(clock: Clock) -> tuple[int, ...]:
    """Batch sizes for the device."""
    return QUICK_BATCHES if clock.quick else BATCHES
