"""The learner's update against the plain loop's on the same samples, update by update in one process.

    python benchmarks/bench_update.py [--repeats 5] [--updates 20] [--json FILE]

The plain loop collects 2048 steps of 16 environments; both update on these in turns: advantages, 4 epochs
of minibatches of 256, clipped fused Adam. Ours is `Trainer.apply`, so it also computes the values anew and
the metrics of an update. Times are of the CPU, one thread: other work on the machine hardly counts. SAC has
no such peer here: milliseconds per gradient step of the Pendulum recipe.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe
from plain_loop import Loop
from torch import Tensor

from rollbus_core.config.load import Resolved, load
from rollbus_core.version import Version
from rollbus_launch.environments import env_maker
from rollbus_launch.policy_module import make_policy
from rollbus_learner.trainer import Trainer
from rollbus_wire import lookup

HERE = Path(__file__).resolve().parent
WORKLOADS = ("cartpole", "halfcheetah")
SAC = HERE.parent / "recipes" / "pendulum_sac.yaml"


def trainer(resolved: Resolved) -> tuple[Trainer, Any]:
    """The learner's mathematics as `rollbus train` builds them, and the spec of the environment."""
    recipe: Any = resolved.recipe
    torch.manual_seed(recipe.run.seed)
    spec = env_maker(recipe.env)(1).spec
    policy = make_policy(recipe, spec, critic="value" in recipe.algorithm.requires)
    algorithm = lookup.find("rollbus_learner.algorithms", recipe.algorithm.name).make(
        recipe.algorithm, spec, policy, resolved.feed
    )
    made = Trainer(
        algorithm, resolved.feeds, device="cpu", seed=recipe.run.seed, total_steps=recipe.run.total_steps
    )
    return made, spec


def chunks(loop: Loop) -> dict[str, Tensor]:
    """What the plain loop has stored, as the store would deliver it."""
    ends = loop.ends > 0
    num_steps, num_envs = ends.shape
    slot = torch.where(ends, ends.flatten().cumsum(0).view_as(ends) - 1, -1).int()
    num_finals = int(ends.sum())
    false = torch.zeros_like(ends)
    start = torch.cat([false[:1], ends[:-1]])
    step = torch.arange(num_steps)[:, None].expand(num_steps, num_envs)
    since = torch.where(start, step, 0).cummax(0).values
    return {
        "obs/obs": torch.cat([loop.obs, loop.now[None]]),
        "final_obs/obs": loop.obs.flatten(0, 1)[:num_finals],
        "action": loop.actions, "log_prob": loop.log_probs, "reward": loop.rewards[..., None],
        "num_steps": torch.ones_like(ends, dtype=torch.int32), "terminated": ends, "truncated": false,
        "interrupted": false.clone(), "valid": ~false, "start": start, "final_slot": slot,
        "step": (step - since + (since == 0)).int(), "episode": (start.cumsum(0) * num_envs).long(),
        "lengths": torch.full((num_envs,), num_steps, dtype=torch.int32),
        "final_return": torch.zeros(num_finals), "final_length": torch.ones(num_finals, dtype=torch.int32),
        "final_success_once": torch.full((num_finals,), -1, dtype=torch.int8),
        "final_success_at_end": torch.full((num_finals,), -1, dtype=torch.int8),
    }  # fmt: skip


def steps(resolved: Resolved, spec: Any) -> dict[str, Tensor]:
    """Random transitions as a replay table would deliver them."""
    num = resolved.feed.num_batches * resolved.feed.batch_size
    false = torch.zeros(num, dtype=torch.bool)
    columns = {
        f"{prefix}obs/{key}": torch.randn(num, *array.shape)
        for key, array in spec.observation.items() for prefix in ("", "next_")
    }  # fmt: skip
    return columns | {
        "action": torch.randn(num, *spec.action.shape), "reward": torch.randn(num, 1),
        "num_steps": torch.ones(num, dtype=torch.int32), "terminated": false, "truncated": false.clone(),
        "interrupted": false.clone(), "valid": ~false, "version": torch.zeros(num, dtype=torch.int64),
        "final_return": torch.zeros(0), "final_length": torch.zeros(0, dtype=torch.int32),
        "final_success_once": torch.zeros(0, dtype=torch.int8),
        "final_success_at_end": torch.zeros(0, dtype=torch.int8),
    }  # fmt: skip


def applied(made: Trainer, batch: dict[str, Tensor]) -> Callable[[], object]:
    """One update with ``batch``, acted by the version that learns."""
    shape, updates = batch["valid"].shape, made.counters

    def update() -> object:
        version = torch.full(shape, Version(0, updates.updates).pack(), dtype=torch.int64)
        return made.apply(batch | {"version": version}, {}, 0)

    return update


def milliseconds(run: Callable[[], object]) -> float:
    """CPU time of one call."""
    began = time.process_time()
    run()
    return 1e3 * (time.process_time() - began)


def on_policy(workload: str, repeats: int, num: int) -> dict[str, Any]:
    """Both updates of one workload, in turns."""
    loop = Loop(workload, seed=1)
    last = loop.collect()
    made, _ = trainer(load(HERE / "recipes" / f"{workload}.yaml"))
    runs = {"plain": lambda: loop.update(last), "ours": applied(made, chunks(loop))}
    for run in runs.values():
        milliseconds(run)
    times = np.array(
        [[[milliseconds(run) for run in runs.values()] for _ in range(num)] for _ in range(repeats)]
    )
    of_repetition = np.median(times, axis=1)
    plain_ms, ours_ms = np.median(of_repetition, axis=0).tolist()
    ratio = float(np.median(of_repetition[:, 1] / of_repetition[:, 0]))
    print(
        f"{workload}: update of the plain loop {plain_ms:.1f} ms, ours {ours_ms:.1f} ms = {ratio:.2f} x; "
        f"per minibatch {plain_ms / 32:.2f} and {ours_ms / 32:.2f} ms"
    )
    return {"workload": workload, "plain_ms": plain_ms, "ours_ms": ours_ms, "ratio": ratio}


def replayed(repeats: int, num: int) -> dict[str, Any]:
    """SAC on random transitions."""
    resolved = load(SAC)
    made, spec = trainer(resolved)
    run = applied(made, steps(resolved, spec))
    milliseconds(run)
    update_ms = statistics.median(milliseconds(run) for _ in range(repeats * max(1, num // 4)))
    step_ms = update_ms / resolved.feed.num_batches
    print(f"pendulum_sac: {step_ms:.2f} ms per gradient step on {resolved.feed.batch_size} transitions")
    return {"workload": "pendulum_sac", "step_ms": step_ms}


def main() -> None:
    """Measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20, help="of each, per repetition")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = [on_policy(workload, arguments.repeats, arguments.updates) for workload in WORKLOADS]
    results.append(replayed(arguments.repeats, arguments.updates))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": describe(), "update": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
