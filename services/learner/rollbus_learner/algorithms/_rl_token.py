"""Stage 1 of RLT: a token learns from data to say what a frozen policy sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollbus_learner.algorithm import Algorithm, AlgorithmConfig, Loss, Plan, Role, Step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from rollbus_core.feed import Feed
    from rollbus_learner.algorithm import Batch, Roles
    from rollbus_wire.spec import EnvSpec


class Stages(AlgorithmConfig):
    """What each stage begins with: weights that it leaves as they are."""

    stage: str

    @property
    def begins_with(self) -> str:
        """In the second stage also the token's."""
        last = "the run of algorithm.stage: token"
        return last if self.stage == "actor" else "a cloned flow or diffusion policy"

    def unfit_start(self, before: AlgorithmConfig) -> str:
        """The second stage needs the token of the first."""
        fits = self.stage == "token" or isinstance(before, Stages)
        return "" if fits else f"is of {before.name}: no token was learned; begin with {self.begins_with}"


class RLToken(Algorithm):
    """The token's encoder and decoder, one loss."""

    def __init__(self, config: AlgorithmConfig, spec: EnvSpec, policy: nn.Module, feed: Feed) -> None:
        super().__init__(config, spec, policy, feed)
        train_only(policy, "refine.token.")

    def roles(self) -> dict[str, Role]:
        """The policy."""
        return {"policy": Role(self.policy)}

    def plan(self) -> Plan:
        """The drawn minibatches, one after the other."""
        return Plan(batch_size=self.feed.batch_size, ordered=True)

    def steps(self) -> list[Step]:
        """Telling the encoder's positions from the token."""
        config = self.config
        return [Step("token", ("policy",), self.loss, config.learning_rate, clip=config.max_grad_norm)]

    def loss(self, roles: Roles, batch: Batch) -> Loss:
        """Mean over valid decisions."""
        from rollbus_learner import masked

        loss = roles["policy"](batch, ("token_loss",))["token_loss"]
        return Loss({"token_loss": masked.total(loss, masked.valid_mask(batch))})

    def publish(self, roles: Roles) -> dict[str, Tensor]:
        """The policy; actors need no critic."""
        return without_critic(roles["policy"])


def train_only(policy: nn.Module, *prefixes: str) -> None:
    """Freeze all parameters of ``policy`` but those whose names begin with one of ``prefixes``."""
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))


def without_critic(policy: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``policy`` that actors get."""
    return {name: value for name, value in policy.state_dict().items() if not name.startswith("critic.")}
