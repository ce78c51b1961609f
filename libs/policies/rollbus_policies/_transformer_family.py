"""The torch side of the plug-in transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rollbus_policies._critics import ValueNet
from rollbus_policies._policy import ActorCritic
from rollbus_policies._transformer import Transformer, causal, sinusoid
from rollbus_policies._transforms import VectorInput
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from rollbus_policies import transformer


class TransformerPolicy(ActorCritic):
    """Features are those of the newest frame, which has seen all before it."""

    def __init__(self, config: transformer.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, frame_stack)
        self.spec.no_trunk = "its attention runs in torch"
        self._inputs = VectorInput(spec, self.keys, 1)
        self.embed = nn.Linear(self._inputs.size, config.width)
        self.blocks = Transformer(config.width, config.layers, config.num_heads)
        self.build_output(config.width)
        self._critic_inputs = VectorInput(spec, self.critic_keys, frame_stack)
        if critic:
            size, hidden = config.width, []
            if config.critic == "own":
                size, hidden = self._critic_inputs.size, config.critic_widths
            self.build_critic(ValueNet(size, hidden, config.activation, config.init, self.value_head))

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        x = self.embed(self._inputs(obs, self.normaliser))
        frames, width = self.spec.frame_stack, x.shape[-1]
        lead = x.shape[:-1] if frames == 1 else x.shape[:-2]
        # Counted from the newest frame, so that a frame's place does not depend on K.
        ages = torch.arange(frames - 1, -1, -1, device=x.device)
        x = x.reshape(-1, frames, width) + sinusoid(ages, width)
        return self.blocks(x, causal(frames, device=x.device))[:, -1].reshape(*lead, width), None

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        assert self.critic is not None
        own = self.config.critic == "own"
        return self.critic(self._critic_inputs(obs, self.normaliser) if own else features)
