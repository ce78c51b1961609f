"""What PPO computes once per update, before its first epoch. Batches are [T, N, ...] (unit "chunk")."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_core.columns import SOURCES
from rollbus_core.version import Version
from rollbus_learner import estimators, masked
from rollbus_wire.spec import TASK

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch

#: The bits of the ``version`` column that count updates.
VERSION_NUMBER = Version(0, (1 << 40) - 1).pack()


def usable(batch: Batch) -> Tensor:
    """bool [T, N]: decisions that count.

    Without: padding, interrupted decisions, truncations whose final observation is missing, which
    have nothing to bootstrap from, and what somebody other than the policy decided, which has no ratio.
    """
    lost = batch["truncated"] & ~batch["terminated"] & (batch["final_slot"] < 0)
    return batch["valid"] & ~batch["interrupted"] & ~lost & own(batch)


def own(batch: Batch) -> Tensor:
    """bool [T, N]: decisions of the policy itself."""
    if "source" not in batch:
        return torch.ones_like(batch["valid"])
    return batch["source"] == SOURCES.index("policy")


def values(policy: nn.Module, batch: Batch, source: str, recurrent: bool) -> tuple[Tensor, Tensor]:
    """Value of every observation [T+1, N], and of the final observation where a step ended [T, N]."""
    slot = batch["final_slot"].long()
    if source == "actor":
        value = torch.cat([batch["value"], batch["last_value"][None]])
        rows = torch.arange(value.shape[1], device=value.device)
        value[batch["lengths"].long(), rows] = batch["last_value"]
        return value, _by_slot(batch["final_value"], slot)
    if recurrent:
        return _recurrent_values(policy, batch, slot)
    both = {
        name: torch.cat([column.flatten(0, 1), batch[f"final_{name}"]])
        for name, column in batch.items()
        if name.startswith("obs/")
    }
    flat = policy(both, ("value",))["value"]
    value, final_value = flat.split([len(flat) - num_finals(batch), num_finals(batch)])
    return value.view(-1, slot.shape[1]), _by_slot(final_value, slot)


def num_finals(batch: Batch) -> int:
    """M, the number of final observations in ``batch``."""
    return next(len(column) for name, column in batch.items() if name.startswith("final_obs/"))


def _by_slot(final_value: Tensor, slot: Tensor) -> Tensor:
    """[T, N] of ``final_value`` [M]; 0 where ``slot`` is -1."""
    spread = torch.zeros(slot.shape, dtype=final_value.dtype, device=final_value.device)
    there = slot >= 0
    spread[there] = final_value[slot[there]]
    return spread


def _recurrent_values(policy: nn.Module, batch: Batch, slot: Tensor) -> tuple[Tensor, Tensor]:
    """As `values`, in one pass over rows that have each final observation put in behind its step.

    So a final observation is seen with the state its own episode left, and the next one starts anew.
    """
    length, rows = slot.shape
    ended = (slot >= 0) & batch["valid"]
    before = torch.cat([torch.zeros_like(slot[:1]), ended.cumsum(0)])
    place = torch.arange(length + 1, device=slot.device)[:, None] + before
    row = torch.arange(rows, device=slot.device).expand(length + 1, rows)
    time, final_row = ended.nonzero(as_tuple=True)
    final_place = place[time, final_row] + 1
    total = length + 1 + int(before[-1].max())

    woven: Batch = {"state": batch["state"]}
    for name, column in batch.items():
        if name.startswith("obs/"):
            woven[name] = column.new_zeros((total, rows, *column.shape[2:]))
            woven[name][place, row] = column
            woven[name][final_place, final_row] = batch[f"final_{name}"][slot[time, final_row]]
    woven["start"] = torch.zeros((total, rows), dtype=torch.bool, device=slot.device)
    woven["start"][place[:length], row[:length]] = batch["start"]

    value = policy(woven, ("value",))["value"]
    final_value = torch.zeros(slot.shape, dtype=value.dtype, device=value.device)
    final_value[time, final_row] = value[final_place, final_row]
    return value[place, row], final_value


def advantages(
    batch: Batch, reward: np.ndarray, discount: np.ndarray, value: Tensor, final_value: Tensor, lam: float
) -> tuple[Tensor, Tensor]:
    """GAE of the batch: advantage and target, float32 [T, N], on the batch's device."""
    advantage, target = estimators.gae(
        reward=reward,
        discount=discount,
        value=value.float().cpu().numpy(),
        final_value=final_value.float().cpu().numpy(),
        terminated=batch["terminated"].cpu().numpy(),
        truncated=batch["truncated"].cpu().numpy(),
        valid=batch["valid"].cpu().numpy(),
        lam=lam,
    )
    return torch.from_numpy(advantage).to(value.device), torch.from_numpy(target).to(value.device)


def normalised(advantage: Tensor, batch: Batch, per_task: bool) -> Tensor:
    """``advantage`` [T, N] with mean 0 and deviation 1 over what is valid, or over that of each task."""
    valid = batch["valid"]
    if not per_task:
        return masked.normalise(advantage, valid)
    task = batch[f"obs/{TASK}"][: len(valid)]
    if task.ndim > valid.ndim:  # stacked frames: the newest
        task = task.select(-1, -1)
    parts = [masked.normalise(advantage, valid & (task == each)) for each in task[valid].unique()]
    return torch.stack(parts).sum(0) if parts else torch.zeros_like(advantage)


def log_probs(policy: nn.Module, batch: Batch, recurrent: bool) -> Tensor:
    """What ``policy`` gives the actions of ``batch``, [T, N]; 0 where not ``valid``."""
    valid = batch["valid"]
    seen = {n: c[: len(valid)] for n, c in batch.items() if n.startswith("obs/")}
    scored = seen | {name: batch[name] for name in ("action", "num_steps")}
    if recurrent:
        scored |= {name: batch[name] for name in ("start", "state")}
        found = policy(scored, ("log_prob",))["log_prob"]
    else:
        flat = {name: column.flatten(0, 1) for name, column in scored.items()}
        found = policy(flat, ("log_prob",))["log_prob"].view(valid.shape)
    return torch.where(valid, found, torch.zeros_like(found))


def lag(batch: Batch, updates: int) -> Tensor:
    """Updates between the version that acted and number ``updates``, int64 [T, N]."""
    return updates - (batch["version"] & VERSION_NUMBER)


def weigh_gap(policy: nn.Module, batch: Batch, recurrent: bool, limit: float) -> dict[str, float]:
    """Weigh ``advantage`` by min(exp(learner - actor), limit); ``log_prob`` becomes the learner's."""
    now = log_probs(policy, batch, recurrent)
    weight = torch.where(batch["valid"], now - batch["log_prob"], torch.zeros_like(now)).exp()
    cut = (weight > limit) & batch["valid"]
    batch["advantage"] = batch["advantage"] * weight.clamp(max=limit)
    batch["log_prob"] = now
    return {"gap_weights_cut": float(cut.sum() / batch["valid"].sum().clamp(min=1))}


def log_prob_gap(
    policy: nn.Module, batch: Batch, updates: int, recurrent: bool, most: int
) -> dict[str, float]:
    """Difference of actor and learner log-probs where both are of one version; {} if no sample is."""
    same = batch["valid"] & (lag(batch, updates) == 0)
    if recurrent:
        rows = same.any(0).nonzero()[:, 0][: max(1, most // len(same))]
        same, stored = same[:, rows], batch["log_prob"][:, rows]
        part = {name: batch[name][:, rows] for name in ("start", "action", "num_steps")}
        part["state"] = batch["state"][rows]
        observed = {n: c[: len(same), rows] for n, c in batch.items() if n.startswith("obs/")}
        found = policy(part | observed, ("log_prob",))["log_prob"][same] if len(rows) else stored[same]
        stored = stored[same]
    else:
        time, row = (index[:most] for index in same.nonzero(as_tuple=True))
        needed = ("action", "num_steps")
        part = {n: c[time, row] for n, c in batch.items() if n.startswith("obs/") or n in needed}
        stored = batch["log_prob"][time, row]
        found = policy(part, ("log_prob",))["log_prob"] if len(time) else stored
    if not len(stored):
        return {}
    difference = found - stored
    return {
        "log_prob_gap": float(difference.abs().mean()),
        "log_prob_gap_ratio": float(difference.exp().mean()),
    }
