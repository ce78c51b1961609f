"""Stage costs of a recipe on this machine, by short rehearsals of its own services: some ten seconds."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

from rollbus_core.config.plugins import least_rows
from rollbus_core.cores import num_cores
from rollbus_core.plan.costs import IdleCosts, StageCosts
from rollbus_launch.planning import echo
from rollbus_launch.planning.fit import actor_costs, ending_share, hub_costs, ratio
from rollbus_launch.planning.memory import Growth
from rollbus_launch.planning.rehearsal import Rehearsal, Sample
from rollbus_launch.planning.trials import tried

#: Of each rehearsal; of real updates; of two processes side by side.
REHEARSAL_S, UPDATES_S, SIDE_BY_SIDE_S = 0.6, 2.0, 0.6
#: Free updates that are waited for at most so long.
NUM_FREE_UPDATES, FREE_UPDATES_S = 3, 4.0
#: A rehearsal with episodes of this length shows what their ends cost.
SHORT_EPISODE = 8


def measure(resolved: Any, note: Callable[[str], None] = lambda _: None) -> StageCosts:
    """Costs of ``resolved``; ``note`` hears what is being measured. Raises `DeadlineExceeded`."""
    env = resolved.recipe.env
    num_rows, num_slices = env.num_envs // env.num_slices, env.num_slices
    growth = Growth(resolved.recipe)
    note("messages between processes")
    way = echo.way()
    note("the run as it is")
    whole = Whole(resolved, num_rows, num_slices, growth)
    note("other slices and episodes")
    fused = [*whole.samples, *_others(resolved, num_rows, num_slices, fused=True)]
    short = _samples(resolved, num_rows, 1, fused=True, time_limit=SHORT_EPISODE)
    hub, actor = hub_costs(fused + short), actor_costs(fused + short)
    note("hub and actor apart")
    apart = _samples(resolved, num_rows, 1, fused=False) + _others(resolved, num_rows, 1, fused=False)
    one_slice = [s for s in fused if s.turns["hub"] >= 0.9 * s.ticks]
    between = [s.other_s for s in apart]
    costs = StageCosts(
        hub_fused=hub, hub_apart=hub_costs(apart, hub),
        actor_fused=actor, actor_apart=actor_costs(apart, actor),
        idle=_idle(apart, whole.wait_s), store_s=whole.store_s,
        update_s=whole.update_s, learner_s=whole.learner_s,
        update_on_device=whole.on_device, apply_s=whole.apply_s,
        message_s=max(way.message_s, ratio(between, [2 * s.ticks for s in apart])), wake_s=way.wake_s,
        slowdown=whole.slowdown,
        episode_steps=ratio([s.rows for s in fused], [s.episodes for s in fused]) or 1e6,
        ending_share=ending_share(one_slice),
        episode_limit=whole.episode_limit, step_bytes=whole.step_bytes,
        weights_bytes=whole.weights_bytes, batch_bytes=whole.batch_bytes,
        role_bytes=growth.role_bytes, shared_bytes=growth.shared_bytes,
    )  # fmt: skip
    note("real processes side by side")
    return tried(resolved, costs)


class Whole:
    """A rehearsal of the recipe's own slices, hub and actor fused, with real updates and a neighbour."""

    def __init__(self, resolved: Any, num_rows: int, num_slices: int, growth: Growth) -> None:
        with Rehearsal(
            resolved, num_rows=num_rows, num_slices=num_slices, fused=True, growth=growth
        ) as rehearsal:
            updates = rehearsal.updates
            assert updates is not None
            rehearsal.until(lambda: updates.batch is not None, "updates")
            rehearsal.settled()
            self.samples = rehearsal.samples(REHEARSAL_S)
            until = time.monotonic() + FREE_UPDATES_S
            learned = list(self.samples)
            while sum(s.updates for s in learned) < NUM_FREE_UPDATES and time.monotonic() < until:
                learned += rehearsal.samples(0.2)
            self.update_s = _updates(updates.real)
            self.slowdown = _slowdown(rehearsal, updates.real)
            self.on_device, self.wait_s = rehearsal.on_device, rehearsal.wait_s()
            self.step_bytes, self.weights_bytes = rehearsal.step_bytes, rehearsal.weights_bytes
            assert updates.batch is not None
            self.batch_bytes = sum(c.numel() * c.element_size() for c in updates.batch[0].values())
            self.episode_limit = rehearsal.episode_limit
        num = [s.updates for s in learned]
        self.learner_s = ratio([s.seconds["learner"] for s in learned], num)
        self.store_s = ratio(
            [s.seconds["broker"] for s in learned], [2 * s.chunks + 3 * s.updates for s in learned]
        )
        self.apply_s = ratio([s.apply_s for s in learned], [s.applied for s in learned])


def _others(resolved: Any, num_rows: int, num_slices: int, *, fused: bool) -> list[Sample]:
    """Another number of slices, and another number of rows."""
    num_envs = resolved.recipe.env.num_envs
    least = least_rows(resolved.recipe.env)
    more = num_envs if num_envs > num_rows else max(least, num_envs // 4)
    samples = _samples(resolved, num_rows, 1 if num_slices > 1 else 2, fused=fused)
    return samples + _samples(resolved, more, 1, fused=fused)


def _samples(
    resolved: Any, num_rows: int, num_slices: int, *, fused: bool, time_limit: int = 0
) -> list[Sample]:
    with Rehearsal(
        resolved, num_rows=num_rows, num_slices=num_slices, fused=fused, time_limit=time_limit
    ) as rehearsal:
        return rehearsal.samples(REHEARSAL_S)


def _updates(real: Callable[[], float]) -> float:
    """Median time of a real update."""
    times: list[float] = []
    until = time.monotonic() + UPDATES_S
    while len(times) < 3 or (time.monotonic() < until and len(times) < 50):
        times.append(real())
        if len(times) >= 2 and time.monotonic() > until:
            break
    return median(times)


def _slowdown(rehearsal: Rehearsal, real: Callable[[], float]) -> float:
    """How much longer polls take while another process updates."""
    if num_cores() < 2:
        return 1.0
    alone = rehearsal.samples(SIDE_BY_SIDE_S / 2)
    pid = _fork(real)
    try:
        beside = rehearsal.samples(SIDE_BY_SIDE_S)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    alone += rehearsal.samples(SIDE_BY_SIDE_S / 2)
    return max(1.0, _per_tick(beside) / _per_tick(alone))


def _per_tick(samples: list[Sample]) -> float:
    return median((s.seconds["hub"] + s.seconds["actor"]) / s.ticks for s in samples)


def _fork(work: Callable[[], Any]) -> int:
    """A process that repeats ``work`` until it is killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    return pid


def _idle(samples: list[Sample], wait_s: float) -> IdleCosts:
    each = {
        role: ratio([s.idle_s[role] for s in samples], [s.idle_turns[role] for s in samples])
        for role in ("broker", "hub", "actor", "learner")
    }
    return IdleCosts(wait=wait_s, **each)
