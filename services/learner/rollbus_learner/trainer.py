"""Everything that learns, apart from where data comes from and results go to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import save_file

from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_core.rng import mix, stream
from rollbus_learner import batch_metrics, optim
from rollbus_learner.algorithm import Algorithm, Progress
from rollbus_learner.checkpoint import Counters, Training
from rollbus_learner.execution import Execution
from rollbus_learner.loop import NonFiniteLoss, update
from rollbus_learner.rewards import Rewards
from rollbus_learner.tree import storable
from rollbus_wire.errors import ConfigError, Diverged

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch


class Trainer:
    """An algorithm on a device, with its optimisers and counters."""

    def __init__(
        self, algorithm: Algorithm, feeds: Mapping[str, Feed], *, device: str, seed: int, total_steps: int,
        total_updates: int = 0, precision: str = "float32", micro_batch: int = 0,
        rewards: Rewards | None = None,
    ) -> None:  # fmt: skip
        self._rewards = rewards
        self.algorithm, self.device = algorithm, torch.device(device)
        self.main, self.feed = next(iter(feeds.items()))
        self.seed, self.total_steps, self.total_updates = seed, total_steps, total_updates
        if micro_batch and algorithm.plan().whole_rows:
            raise ConfigError(
                f"learner.micro_batch {micro_batch} cuts samples, but this policy learns from whole rows; "
                "raise algorithm.minibatches instead"
            )
        self.execution = Execution(self.device.type, precision == "bf16", micro_batch)
        roles = algorithm.roles()
        for role in roles.values():
            role.module.to(self.device)
            if not role.trainable:
                role.module.requires_grad_(False)
        self.modules = {name: role.module for name, role in roles.items()}
        self.training = Training(algorithm, optim.build(algorithm.steps(), self.modules))

    @property
    def counters(self) -> Counters:
        return self.training.counters

    def draw_seed(self, stream: str) -> int:
        """Seed of the next draw from ``stream``: of (run seed, stream, update) alone."""
        return self._seed("sample" if stream == TRAINING_TABLE else f"sample {stream}")

    def apply(self, batch: Batch, sequences: Mapping[str, int], table_steps: int) -> dict[str, float]:
        """One update with ``batch`` as it came from the store; moves the counters on.

        ``sequences``: the deliveries that it is made of. ``table_steps``: of the main stream.

        Raises `NonFiniteLoss`. A batch without a valid decision makes a version that equals the last.
        """
        counters = self.counters
        metrics = batch_metrics.describe(batch, counters.updates, self.algorithm.spec)
        env_steps = counters.env_steps + self._growth(batch, metrics["samples"], table_steps)
        if metrics["samples"]:
            torch.manual_seed(self._seed("update"))
            generator = torch.Generator().manual_seed(self._seed("shuffle"))
            progress = Progress(counters.updates, env_steps, self.total_steps, self.total_updates)
            there = {name: column.to(self.device, non_blocking=True) for name, column in batch.items()}
            if self._rewards is not None:
                metrics |= self._rewards.add(there)
            metrics |= update(
                self.algorithm, self.modules, self.training.optimisers, there, progress, generator,
                self.execution,
            )  # fmt: skip
        self.skip(sequences)
        counters.env_steps, counters.table_steps = env_steps, max(table_steps, counters.table_steps)
        counters.episodes += int(metrics.get("episodes", 0))
        return metrics

    def skip(self, sequences: Mapping[str, int]) -> None:
        """Count these deliveries as applied, whatever was in them."""
        self.counters.updates += 1
        self.counters.applied |= sequences

    def published(self) -> dict[str, np.ndarray]:
        """What actors get, as numpy arrays."""
        tensors = self.algorithm.publish(self.modules)
        return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}

    def _growth(self, batch: Batch, samples: float, table_steps: int) -> int:
        """Environment steps that the run has grown by."""
        if self.main != TRAINING_TABLE:
            return 0
        executed = batch_metrics.executed_steps(batch)
        if self.feed.unit == "chunk":
            return executed
        new = max(0, table_steps - self.counters.table_steps)
        return round(new * executed / samples) if samples else new

    def _seed(self, name: str) -> int:
        key = np.array([stream(self.seed, name) ^ np.uint64(self.counters.updates)])
        return int(mix(key)[0] >> np.uint64(1))


def check_gap(metrics: Mapping[str, float], limit: float) -> None:
    """Raise `Diverged` if actor and learner disagree about log-probs by more than ``limit`` (0: never)."""
    gap = metrics.get("log_prob_gap", 0.0)
    if limit and not gap <= limit:
        raise Diverged(
            f"log_prob_gap is {gap:.3g}, above learner.gap_limit {limit:.3g}: actor and learner compute "
            "different log-probs with the same weights. Use one engine and precision for both, or raise "
            "learner.gap_limit"
        )


def dump(error: NonFiniteLoss, folder: Path, updates: int) -> Path:
    """Write the minibatch that gave ``error`` for people to look at."""
    path = folder / f"not-finite-{updates}.safetensors"
    save_file(storable(error.batch), path, {"term": error.term, "step": error.step})
    return path
