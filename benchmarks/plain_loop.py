"""The peer to beat: PPO in one process, gymnasium's SyncVectorEnv and torch, 16 environments.

    python benchmarks/plain_loop.py cartpole|halfcheetah|pixels [--seconds 8] [--seed 1] [--evaluate 0]

Prints one JSON line: steps per second with learning, and where a step's time goes: stepping (``s``),
inference with sampling and log-probs (``i``), update with advantages (``u``), microseconds per
environment step. Workload: 2048 steps per update, 4 epochs, minibatches of 256, fused Adam.
"""

from __future__ import annotations

import argparse
import collections
import json
import time
from typing import Any

import gymnasium
import numpy as np
import pixel_env
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

NUM_ENVS, STEPS, MINIBATCH, EPOCHS = 16, 128, 256, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
WARM_UP_UPDATES = 4
IDS = {"cartpole": "CartPole-v1", "halfcheetah": "HalfCheetah-v5", "pixels": pixel_env.ID}


def layer(size_in: int, size_out: int, gain: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights, zero bias."""
    made = nn.Linear(size_in, size_out)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Network(nn.Module):
    """Two tanh networks for vectors, one Nature encoder with two outputs for images."""

    def __init__(self, space: Any, num_out: int, *, discrete: bool) -> None:
        super().__init__()
        self.image = len(space.shape) == 3
        if self.image:
            self.encoder = nn.Sequential(
                nn.Conv2d(3, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(),
                nn.Conv2d(64, 64, 3, 1), nn.ReLU(), nn.Flatten(), layer(3136, 512), nn.ReLU(),
            )  # fmt: skip
            self.actor, self.critic = layer(512, num_out, 0.01), layer(512, 1, 1.0)
        else:
            self.actor, self.critic = (
                self._mlp(space.shape[0], n, g) for n, g in ((num_out, 0.01), (1, 1.0))
            )
        self.log_std = None if discrete else nn.Parameter(torch.zeros(num_out))

    @staticmethod
    def _mlp(size: int, num_out: int, gain: float) -> nn.Sequential:
        return nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, num_out, gain))

    def forward(self, obs: Tensor) -> tuple[Any, Tensor]:
        """Distribution and value."""
        if self.image:
            obs = self.encoder(obs.permute(0, 3, 1, 2).float() / 255.0)
        raw, value = self.actor(obs), self.critic(obs).squeeze(-1)
        if self.log_std is None:
            return torch.distributions.Categorical(logits=raw, validate_args=False), value
        spread = self.log_std.exp().expand_as(raw)
        return torch.distributions.Independent(
            torch.distributions.Normal(raw, spread, validate_args=False), 1, validate_args=False
        ), value


class Loop:
    """Environments, network, and the storage of one update."""

    def __init__(self, workload: str, seed: int) -> None:
        torch.manual_seed(seed)
        pixel_env.register()
        make = lambda: gymnasium.make(IDS[workload])  # noqa: E731
        self.envs = SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
        observed, acted = self.envs.single_observation_space, self.envs.single_action_space
        self.discrete = hasattr(acted, "n")
        self.bounds = None if self.discrete else (acted.low, acted.high)
        self.network = Network(observed, acted.n if self.discrete else acted.shape[0], discrete=self.discrete)
        self.optimiser = torch.optim.Adam(self.network.parameters(), 3e-4, eps=1e-5, fused=True)
        dtype = torch.uint8 if self.network.image else torch.float32
        self.obs = torch.zeros((STEPS, NUM_ENVS, *observed.shape), dtype=dtype)
        self.actions = torch.zeros(
            (STEPS, NUM_ENVS, *acted.shape), dtype=torch.long if self.discrete else torch.float32
        )
        self.log_probs, self.rewards, self.ends, self.values = (
            torch.zeros(STEPS, NUM_ENVS) for _ in range(4)
        )
        self.now = torch.as_tensor(self.envs.reset(seed=seed)[0], dtype=dtype)
        self.returns: collections.deque[float] = collections.deque(maxlen=50)
        self.running = np.zeros(NUM_ENVS)
        self.spent = dict.fromkeys("siu", 0.0)

    @torch.no_grad()
    def collect(self) -> Tensor:
        """Fill the storage; the values of the last observations."""
        for t in range(STEPS):
            began = time.perf_counter()
            self.obs[t] = self.now
            distribution, self.values[t] = self.network(self.now)
            action = distribution.sample()
            self.actions[t], self.log_probs[t] = action, distribution.log_prob(action)
            executed = action.numpy() if self.bounds is None else action.numpy().clip(*self.bounds)
            decided = time.perf_counter()
            obs, reward, terminated, truncated, _ = self.envs.step(executed)
            stepped = time.perf_counter()
            self.spent["i"] += decided - began
            self.spent["s"] += stepped - decided
            self.now = torch.as_tensor(obs, dtype=self.obs.dtype)
            done = terminated | truncated
            self.rewards[t], self.ends[t] = torch.as_tensor(reward), torch.as_tensor(done)
            self.running += reward
            self.returns.extend(self.running[done])
            self.running[done] = 0.0
        return self.network(self.now)[1]

    def update(self, last_value: Tensor) -> None:
        """Advantages, then the epochs."""
        began = time.perf_counter()
        advantages, running, following = torch.zeros(STEPS, NUM_ENVS), torch.zeros(NUM_ENVS), last_value
        for t in reversed(range(STEPS)):
            going_on = 1.0 - self.ends[t]
            error = self.rewards[t] + GAMMA * following * going_on - self.values[t]
            running = error + GAMMA * LAMBDA * going_on * running
            advantages[t], following = running, self.values[t]
        targets = (advantages + self.values).flatten()
        advantages, old = advantages.flatten(), self.log_probs.flatten()
        obs, actions = self.obs.flatten(0, 1), self.actions.flatten(0, 1)
        for _ in range(EPOCHS):
            for chosen in torch.randperm(STEPS * NUM_ENVS).split(MINIBATCH):
                distribution, value = self.network(obs[chosen])
                ratio = (distribution.log_prob(actions[chosen]) - old[chosen]).exp()
                gain = advantages[chosen]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                surrogate = torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = 0.5 * (value - targets[chosen]).square().mean() - surrogate
                self.optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.network.parameters(), 0.5)
                self.optimiser.step()
        self.spent["u"] += time.perf_counter() - began

    @torch.no_grad()
    def evaluate(self, workload: str, episodes: int) -> list[float]:
        """Returns of whole episodes, seeds 0 and on, with the mode of the distribution."""
        env, returns = gymnasium.make(IDS[workload]), []
        for seed in range(episodes):
            obs, over, total = env.reset(seed=seed)[0], False, 0.0
            while not over:
                distribution, _ = self.network(torch.as_tensor(obs[None], dtype=self.obs.dtype))
                action = distribution.mode[0].numpy()
                executed = action if self.bounds is None else action.clip(*self.bounds)
                obs, reward, terminated, truncated, _ = env.step(executed)
                over, total = terminated or truncated, total + float(reward)
            returns.append(total)
        return returns


def main() -> None:
    """Measure after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=sorted(IDS))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of --seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate", type=int, default=0, help="episodes after the last update")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    loop = Loop(arguments.workload, arguments.seed)
    updates, began = 0, time.perf_counter()
    while True:
        if updates == WARM_UP_UPDATES:
            loop.spent, began = dict.fromkeys("siu", 0.0), time.perf_counter()
        loop.update(loop.collect())
        updates += 1
        if updates > WARM_UP_UPDATES and (
            updates * STEPS * NUM_ENVS >= arguments.steps
            if arguments.steps
            else time.perf_counter() - began > arguments.seconds
        ):
            break
    steps = (updates - WARM_UP_UPDATES) * STEPS * NUM_ENVS
    parts = {name: spent / steps * 1e6 for name, spent in loop.spent.items()}
    rate = steps / (time.perf_counter() - began)
    found = {"steps_per_s": rate, **parts, "return": float(np.mean(loop.returns or [np.nan]))}
    if arguments.evaluate:
        found["evaluated"] = loop.evaluate(arguments.workload, arguments.evaluate)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
