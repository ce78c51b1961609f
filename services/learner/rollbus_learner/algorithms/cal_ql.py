"""Cal-QL: CQL calibrated by the returns of the data (Nakamoto et al., 2303.05479).

Where the conservative term pushes the value of the policy's actions down, it stops at what the data's own
policy has got from there: ``max(Q(s, a), return to go)``. So values stay on the scale of returns, and
what is learned from data is not forgotten when collection goes on from it (`run.start_from` with sac).
Where it differs from the authors' code: as `cql`; an episode that was cut off counts up to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.feed import Feed
from rollbus_core.lazy import lazy_import
from rollbus_learner.algorithms._conservative import Conservative, ConservativeConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from rollbus_learner.algorithm import Batch
    from rollbus_wire.spec import EnvSpec
else:
    torch = lazy_import("torch")

needs = ("torch",)


class Config(ConservativeConfig):
    """Settings of Cal-QL."""

    name: str = "cal_ql"

    def feed(self, *, num_envs: int, num_slices: int, deterministic: bool) -> Feed:
        """Transitions of the data with what the episode got from there on."""
        feed = super().feed(num_envs=num_envs, num_slices=num_slices, deterministic=deterministic)
        return feed.model_copy(update={"return_discount": self.gamma})


class CalQL(Conservative):
    """`Conservative` with a floor."""

    def bounded(self, heads: Tensor, batch: Batch) -> Tensor:
        """``max(Q, return to go)``."""
        return torch.maximum(heads, batch["return_to_go"])


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> CalQL:
    """The algorithm for one learner."""
    return CalQL(config, spec, policy, feed)
