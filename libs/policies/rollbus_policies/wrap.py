"""A torch module of one's own as a policy: it gives features, the rest is that of the other families.

See docs/policies.md, "A policy of your own".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from rollbus_policies._config import ActorCriticConfig
from rollbus_policies._critics import ValueNet
from rollbus_policies._policy import ActorCritic
from rollbus_policies._transforms import VectorInput, group_keys
from rollbus_wire.spec import EnvSpec


def num_inputs(spec: EnvSpec, frame_stack: int = 1) -> int:
    """Elements of the vector that a wrapped module gets by default: classes one-hot, images flat."""
    return VectorInput(spec, group_keys(spec, "policy"), frame_stack).size


def wrap(
    module: nn.Module, num_features: int, spec: EnvSpec, *, critic: bool, frame_stack: int = 1,
    config: ActorCriticConfig | None = None, inputs: Callable[[Mapping[str, Tensor]], Any] | None = None,
) -> ActorCritic:  # fmt: skip
    """The policy whose features [..., num_features] are ``module(inputs(obs))``.

    ``config`` says which head and critic it gets (a shared critic reads the features); ``inputs`` turns the
    observations [..., ...] per key into what the module takes, by default one vector [..., size] of the
    observation group "policy" in key order.
    """
    return _Wrapped(
        module, num_features, config or ActorCriticConfig(critic="shared"), spec, critic, frame_stack, inputs
    )


class _Wrapped(ActorCritic):
    def __init__(
        self, module: nn.Module, num_features: int, config: ActorCriticConfig, spec: EnvSpec, critic: bool,
        frame_stack: int, inputs: Callable[[Mapping[str, Tensor]], Any] | None,
    ) -> None:  # fmt: skip
        super().__init__(config, spec, frame_stack)
        self.spec.no_trunk = "its module runs in torch"
        vector = VectorInput(spec, self.keys, frame_stack)
        self._inputs = inputs or (lambda obs: vector(obs, self.normaliser))
        self.encoder = module
        self.build_output(num_features)
        self._critic_inputs = VectorInput(spec, self.critic_keys, frame_stack)
        if critic:
            size, hidden = num_features, []
            if config.critic == "own":
                size, hidden = self._critic_inputs.size, config.critic_widths
            self.build_critic(ValueNet(size, hidden, config.activation, config.init, self.value_head))

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.encoder(self._inputs(obs)), None

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        assert self.critic is not None
        own = self.config.critic == "own"
        return self.critic(self._critic_inputs(obs, self.normaliser) if own else features)
