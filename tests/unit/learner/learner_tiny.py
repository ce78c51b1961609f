"""Small policies and batches for the tests of the learner's mathematics, and the loop in thirty lines."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from rollbus_learner import optim
from rollbus_learner.algorithm import Algorithm, Plan, Progress
from rollbus_learner.minibatch import minibatches
from rollbus_policies.base import Ask, PolicySpec
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    name="tiny",
    observation={"x": ArraySpec("float32", (3,))},
    action=ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0]),
)


DISCRETE = EnvSpec("tiny-discrete", SPEC.observation, ActionSpec("discrete", num=[3]))


class TinyPolicy(nn.Module):
    """Gaussian over the pre-squash action, tanh outside; value linear in the observation."""

    def __init__(self, state_size: int = 0) -> None:
        super().__init__()
        self.spec = PolicySpec(
            ("float32", (2,)), state="hub" if state_size else "none", state_size=state_size, noise=2
        )
        self.mean = nn.Linear(3, 2)
        self.log_std = nn.Parameter(torch.full((2,), -0.5))
        self.critic = nn.Linear(3, 1)
        self.normaliser = None
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, batch, want):
        obs = batch["obs/x"]
        normal = torch.distributions.Normal(self.mean(obs), self.log_std.exp())
        out = {}
        if "log_prob" in want:
            out["log_prob"] = normal.log_prob(batch["action"]).sum(-1)
        if "entropy" in want:
            out["entropy"] = normal.entropy().sum(-1)
        if "value" in want:
            out["value"] = self._value(batch)
        if "sample" in want:
            drawn = normal.mean + normal.stddev * batch["noise"]
            squash = torch.log1p(-(torch.tanh(drawn) ** 2) + 1e-6)
            out["sample"] = drawn
            out["sample_log_prob"] = (normal.log_prob(drawn) - squash).sum(-1)
        return out

    def _value(self, batch):
        now = self.critic(batch["obs/x"])[..., 0]
        if self.spec.state == "none":
            return now
        memory, values = batch["state"][:, 0], []
        for t in range(len(now)):
            memory = torch.where(batch["start"][t], torch.zeros_like(memory), memory) * 0.5 + now[t]
            values.append(memory)
        return torch.stack(values)

    def squash(self, action):
        return torch.tanh(action)

    def update_normaliser(self, batch, valid):
        self.seen.append((batch["obs/x"], valid))


class TinyCritic(nn.Module):
    """M linear Q functions of observation and squashed action."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 1)) for _ in range(heads)
        )

    def forward(self, batch, action, prefix="obs/", normalisers=None):
        x = torch.cat([batch[f"{prefix}x"], action], -1)
        return torch.stack([head(x)[..., 0] for head in self.heads])


def chunk_batch(policy, T=8, N=4, seed=0, finals=True):
    """A batch of unit "chunk" acted by ``policy``: ends inside, one short row, packed version 0."""
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(rng.normal(size=(T + 1, N, 3)).astype(np.float32))
    action = torch.from_numpy(acted(policy, obs, rng).astype(np.float32))
    terminated, truncated = torch.zeros(T, N, dtype=torch.bool), torch.zeros(T, N, dtype=torch.bool)
    slot = torch.full((T, N), -1, dtype=torch.int32)
    if finals:
        terminated[2, 0] = truncated[4, 1] = truncated[1, 2] = truncated[5, 2] = True
        for m, (t, n) in enumerate([(2, 0), (4, 1), (1, 2), (5, 2)]):
            slot[t, n] = m
    lengths = torch.full((N,), T, dtype=torch.int32)
    lengths[-1] = T - 3
    valid = torch.arange(T)[:, None] < lengths[None]
    done = terminated | truncated
    start = torch.zeros(T, N, dtype=torch.bool)
    start[1:] = done[:-1]
    batch = {
        "valid": valid, "lengths": lengths, "obs/x": obs, "action": action,
        "final_obs/x": torch.from_numpy(rng.normal(size=(5, 3)).astype(np.float32)),
        "final_slot": slot, "terminated": terminated, "truncated": truncated,
        "interrupted": torch.zeros(T, N, dtype=torch.bool),
        "reward": torch.from_numpy(rng.normal(size=(T, N, 1)).astype(np.float32)),
        "num_steps": torch.ones(T, N, dtype=torch.int32),
        "version": torch.zeros(T, N, dtype=torch.int64),
        "episode": torch.arange(N).expand(T, N).clone() + 100 * done.long().cumsum(0),
        "step": torch.arange(T)[:, None].expand(T, N).int().clone(),
        "start": start, "state": torch.ones(N, 1),
    }  # fmt: skip
    with torch.no_grad():
        batch["log_prob"] = policy({"obs/x": obs[:T], "action": action}, ("log_prob",))["log_prob"]
    return batch


def acted(policy, obs, rng):
    """Actions [T, N, ...] on ``obs`` [T + 1, N, 3]: normal numbers, or what the policy makes of its chain."""
    T, N = len(obs) - 1, obs.shape[1]
    if not getattr(policy.spec, "generative", False):
        return rng.normal(size=(T, N, 2))
    seeds = np.arange(T * N, dtype=np.uint64)
    action = policy.act({"x": obs[:T].flatten(0, 1).numpy()}, None, Ask("sample"), seeds).action
    return action.reshape(T, N, -1)


def episode_batch(policy, T=8, N=16):
    """A batch of unit "chunk" in which every row is one whole episode of T decisions."""
    batch = chunk_batch(policy, T, N, finals=False)
    batch["lengths"][:], batch["valid"][:], batch["terminated"][-1] = T, True, True
    return batch


def step_batch(B=64, seed=0, spec=SPEC):
    """A batch of unit "step": a bandit whose reward is highest at squashed action (0.3, -0.3), or at 1."""
    rng = np.random.default_rng(seed)
    action = torch.from_numpy(rng.normal(size=(B, 2)).astype(np.float32))
    best = torch.tensor([0.3, -0.3])
    if spec.action.kind == "discrete":
        action = torch.from_numpy(rng.integers(0, spec.action.num[0], B))
    reward = -4.0 * ((torch.tanh(action) - best) ** 2).sum(-1, keepdim=True) if action.ndim > 1 else None
    obs = torch.from_numpy(rng.normal(size=(2, B, 3)).astype(np.float32))
    false = torch.zeros(B, dtype=torch.bool)
    return {
        "obs/x": obs[0], "next_obs/x": obs[1], "action": action, "env_action": torch.tanh(action),
        "reward": (action == 1).float()[:, None] if reward is None else reward,
        "return_to_go": torch.zeros(B), "num_steps": torch.ones(B, dtype=torch.int32), "terminated": ~false,
        "truncated": false.clone(), "interrupted": false.clone(), "valid": ~false,
    }  # fmt: skip


def flatten(batch, T):
    """Valid samples of every [T, N, ...] column as [B, ...]."""
    valid = batch["valid"]
    columns = {k: v[:T] if k.startswith("obs/") else v for k, v in batch.items()}
    return {k: v[valid] for k, v in columns.items() if v.shape[:2] == valid.shape}


def samples(plan, batch):
    """What a loss gets: all of the batch as one minibatch."""
    if plan.whole_rows:
        return next(minibatches(batch, Plan(whole_rows=True), torch.Generator()))
    return batch if plan.ordered else flatten(batch, len(batch["valid"]))


def update(algorithm: Algorithm, modules, optimisers, batch, progress: Progress, label=True):
    """One update: label, every step on the whole batch for each epoch, after_update; last metrics."""
    metrics = algorithm.label(batch, modules, progress) if label else {}
    for name, factor in algorithm.before_update(progress).items():
        optimisers[name].scale(factor)
    plan = algorithm.plan()
    sample = samples(plan, batch)
    for _ in range(plan.epochs):
        for step in algorithm.steps():
            optimiser = optimisers[step.name]
            loss = step.loss(modules, sample)
            optimiser.zero()
            optimiser.backward(sum(a / b for a, b in loss.terms.values()))
            optimiser.apply()
            metrics |= {k: (a / b).item() for k, (a, b) in (loss.terms | loss.metrics).items()}
            if algorithm.after_step(modules, step.name, metrics):
                break
    algorithm.after_update(batch, modules, metrics)
    return metrics


def built(algorithm: Algorithm):
    """(modules by role, optimisers by step)."""
    modules = {name: role.module for name, role in algorithm.roles().items()}
    return modules, optim.build(algorithm.steps(), modules)
