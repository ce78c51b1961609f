"""Numbers that say what a batch is made of, for any algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rollbus_core.version import Version
from rollbus_wire.spec import TASK, EnvSpec

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch

_NUMBER_MASK = Version(0, (1 << 40) - 1).pack()


def describe(batch: Batch, updates: int, spec: EnvSpec) -> dict[str, float]:
    """Samples, lag and ended episodes of a batch as it came from the store (CPU tensors).

    Lag and episodes are of what actors collected, not of data sets. ``updates`` were done before this one;
    ``spec`` says which success counts, and which tasks there are.
    """
    valid = batch["valid"].numpy()
    num = int(valid.sum())
    inside = valid.size
    if "lengths" in batch:
        inside = int(batch["lengths"].sum())
    found: dict[str, float] = {"samples": num, "invalid": inside - num}
    from_data = "env_action" in batch
    if num and not from_data:
        lag = updates - (batch["version"].numpy()[valid] & _NUMBER_MASK)
        found |= {"lag_mean": float(lag.mean()), "lag_max": int(lag.max())}
    return found | ({"episodes": 0} if from_data else _episodes(batch, spec))


def executed_steps(batch: Batch) -> int:
    """Environment steps of the valid decisions."""
    return int(batch["num_steps"].numpy()[batch["valid"].numpy()].sum(dtype=np.int64))


def _episodes(batch: Batch, spec: EnvSpec) -> dict[str, float]:
    if "final_return" not in batch:
        return {"episodes": 0}
    chosen = _ended(batch)
    success = batch[f"final_success_{spec.success}"]
    columns = [c.numpy()[chosen] for c in (batch["final_return"], batch["final_length"], success)]
    found = {"episodes": 0} | _means(*columns)
    if spec.tasks and f"final_obs/{TASK}" in batch:
        # With stacked frames the newest counts.
        ran = batch[f"final_obs/{TASK}"].numpy()[chosen]
        ran = ran[:, -1] if ran.ndim > 1 else ran
        for index, task in enumerate(spec.tasks):
            of_task = _means(*(column[ran == index] for column in columns))
            found |= {f"{name}/{task.name}": value for name, value in of_task.items()}
    return found


def _means(returns: np.ndarray, lengths: np.ndarray, success: np.ndarray) -> dict[str, float]:
    """Over episodes [E]; nothing of none."""
    if not len(returns):
        return {}
    found = {
        "episodes": len(returns),
        "return_mean": float(returns.mean(dtype=np.float64)),
        "length_mean": float(lengths.mean()),
    }
    flags = success[success >= 0]
    return found | ({"success_rate": float(flags.mean())} if len(flags) else {})


def _ended(batch: Batch) -> np.ndarray | slice:
    """Which finals are of episodes that ended by themselves; a replay batch holds only those."""
    if "lengths" not in batch:
        return slice(None)
    slot = batch["final_slot"].numpy()
    ended = (batch["terminated"] | batch["truncated"]).numpy() & (slot >= 0)
    return slot[ended & ~batch["interrupted"].numpy()]
