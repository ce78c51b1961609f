"""Group algorithms on given log-probs, so that the gradient of their loss is that by log-probs.

Symbols: N completions of one decision, L tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rollbus_learner.algorithm import Algorithm, Progress
from rollbus_policies.base import PolicySpec
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

NOW = Progress(updates=0, env_steps=0, total_steps=100)


class Given(nn.Module):
    """Its parameter is the log-prob of each token [N, L]; an action is the mask of its tokens."""

    def __init__(self, log_prob: Tensor) -> None:
        super().__init__()
        self.spec = PolicySpec(("int64", (log_prob.shape[1],)))
        self.log_prob = nn.Parameter(log_prob.clone())

    def token_mask(self, action: Tensor) -> Tensor:
        return action == 1

    def forward(self, batch: Any, want: tuple[str, ...]) -> dict[str, Tensor]:
        return {"token_log_prob": self.log_prob[None]}

    def update_normaliser(self, batch: Any, valid: Tensor) -> None:
        pass


def labelled(
    module: Any, found: dict[str, Tensor], **settings: Any
) -> tuple[Algorithm, Any, dict[str, Tensor]]:
    """(algorithm, its networks, the batch [1, N] of ``found`` with labels), groups of four."""
    rows, tokens = found["log_prob"].shape
    spec = EnvSpec(
        "given", {"x": ArraySpec("float32", (1,))},
        ActionSpec("multi_discrete", (tokens,), num=[2] * tokens, layout="tokens"),
    )  # fmt: skip
    config = module.Config(num_groups=rows // 4, group_size=4, **settings)
    feed = config.feed(num_envs=rows, num_slices=1, deterministic=False)
    algorithm = module.make(config, spec, Given(found["log_prob"]), feed)
    networks = {name: role.module for name, role in algorithm.roles().items()}
    if "reference" in networks:
        networks["reference"].log_prob.copy_(found["reference_log_prob"])
    no = torch.zeros(1, rows, dtype=torch.bool)
    batch = {
        "obs/x": torch.zeros(2, rows, 1), "action": found["mask"].long()[None],
        "token_log_prob": found["old_log_prob"][None], "log_prob": torch.zeros(1, rows),
        "reward": found["reward"][None, :, None], "valid": ~no, "terminated": ~no, "truncated": no,
        "interrupted": no, "episode": torch.arange(rows)[None],
        "step": torch.zeros(1, rows, dtype=torch.int32),
        # Of another version: there is no log-prob gap to be measured.
        "version": torch.full((1, rows), 7),
    }  # fmt: skip
    algorithm.label(batch, networks, NOW)
    batch["obs/x"] = batch["obs/x"][:1]
    return algorithm, networks, batch


def spread(found: dict[str, Tensor]) -> Tensor:
    """Deviation of the rewards of each completion's group, divisor n - 1, [N]."""
    return found["reward"].reshape(-1, 4).std(1).repeat_interleave(4)
