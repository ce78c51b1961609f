"""Conservative Q-learning, CQL(H), from data alone (Kumar et al., 2006.04779).

SAC whose critics also minimise ``log of the integral of exp Q(s, .) - Q(s, a)``: what the data does not
show is valued low. ``target_gap`` learns the weight of the term, a Lagrange multiplier. Where it differs from
the authors' code: the policy is not cloned at the beginning; the integral is a mean over proposals, not a
sum, which shifts the loss by a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_core.feed import Feed
from rollbus_learner.algorithms._conservative import Conservative, ConservativeConfig

if TYPE_CHECKING:
    from torch import nn

    from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(ConservativeConfig):
    """Settings of CQL."""

    name: str = "cql"


def make(config: Config, spec: EnvSpec, policy: nn.Module, feed: Feed) -> Conservative:
    """The algorithm for one learner."""
    return Conservative(config, spec, policy, feed)
