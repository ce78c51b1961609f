"""The torch side of the plug-in act.

Symbols: L flattened leading dimensions, C actions of one decision, A elements of an action, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rollbus_policies._bounds import Bounds
from rollbus_policies._context import Context, ContextCritic, Expert
from rollbus_policies._critics import ValueNet
from rollbus_policies._executed import demonstrated, mean_over
from rollbus_policies._heads import ChunkHead, Gaussian, TanhGaussian, chunk_spec
from rollbus_policies._networks import OUTPUT_GAIN, apply, linear
from rollbus_policies._observing import of_batch
from rollbus_policies._policy import ActorCritic
from rollbus_policies._transformer import Transformer, sinusoid
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from rollbus_policies import act


class ActPolicy(ActorCritic):
    """Features are what the expert knows at each of C places, side by side [..., C W]."""

    masks_padding = False

    def __init__(self, config: act.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, frame_stack)
        self.spec.no_trunk = "its attention runs in torch"
        width, chunk, size = config.width, config.chunk, spec.action.size
        sizes = {"width": width, "num_heads": config.num_heads}
        self.context = Context(spec, self.keys, frame_stack, layers=config.layers, **sizes)
        self.expert = Expert(0, chunk, layers=config.expert_layers, **sizes)
        inner = self.head.inner if isinstance(self.head, ChunkHead) else self.head
        #: A Gaussian's means stand before its deviations.
        self._parts = self.head.num_params // (chunk * size) if isinstance(inner, Gaussian) else 1
        self.head.read(chunk * width)
        self.output = linear(width, self.head.num_params // chunk, config.init, OUTPUT_GAIN)
        with torch.no_grad():
            bias = self.head.initial_bias().view(self._parts, chunk, -1)[:, 0]
            self.output.bias.add_(bias.flatten())
        self._has_mean = isinstance(inner, Gaussian) and not isinstance(inner, TanhGaussian)
        if self._has_mean:
            self._bounds = Bounds(chunk_spec(spec.action, chunk))
        if config.latent and self._has_mean:
            self.latent = _Latent(config, size)
        if critic and config.critic == "own":
            net = ContextCritic(
                spec, self.critic_keys, frame_stack, config.critic_widths, self.value_head, **sizes
            )
            self.build_critic(net)
        elif critic:
            self.build_critic(ValueNet(chunk * width, [], config.activation, config.init, self.value_head))

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self._features(obs, None), None

    def _features(self, obs: Mapping[str, Tensor], latent: Tensor | None) -> Tensor:
        """``latent`` [L, Z]; None: 0."""
        flat, lead = self.flattened(obs)
        context = self.context(flat, self.normaliser)
        added = None
        if hasattr(self, "latent"):
            zero = torch.zeros(context[0].shape[0], self.config.latent, device=context[0].device)
            added = self.latent.told(zero if latent is None else latent).unsqueeze(1)
        features = self.expert(context, added).flatten(1)
        return features if len(lead) == 1 else features.reshape(*lead, -1)  # a traced model has any B

    def raw(self, features: Tensor, layer: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """The head's parts, each over all places."""
        places = layer(self.output, features.unflatten(-1, (self.config.chunk, -1)))
        return places.unflatten(-1, (self._parts, -1)).transpose(-3, -2).flatten(-3)

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        critic: Any = self.critic
        if self.config.critic == "shared":
            return critic(features)
        flat, lead = self.flattened(obs)
        return critic(flat, self.normaliser).reshape(*lead, -1)

    def _cloning_loss(self, params: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """L1 of the mean, and the latent's divergence; other heads: negative log-likelihood."""
        if not self._has_mean:
            return super()._cloning_loss(params, batch)
        unit, valid = demonstrated(batch, self._bounds, self.config.chunk, self._env.action.size)
        mean, divergence = params[0], torch.zeros((), device=unit.device)
        if hasattr(self, "latent"):
            centre, log_var = self.latent(unit, valid)
            latent = centre + (0.5 * log_var).exp() * torch.randn_like(centre)
            mean = self.head(self.raw(self._features(self.told(of_batch(batch)), latent), apply))[0]
            divergence = -0.5 * (1.0 + log_var - centre**2 - log_var.exp()).sum(-1)
        distance = mean_over((mean.reshape(unit.shape) - unit).abs().mean(-1), valid)
        return (distance + self.config.kl_weight * divergence).reshape(params[0].shape[:-1])


class _Latent(nn.Module):
    """What a demonstration is beside its observation: mean and log-variance [L, Z] of C actions."""

    def __init__(self, config: act.Config, size: int) -> None:
        super().__init__()
        self.read = nn.Linear(size, config.width)
        self.blocks = Transformer(config.width, 1, config.num_heads)
        self.write = nn.Linear(config.width, 2 * config.latent)
        self.told = nn.Linear(config.latent, config.width)

    def forward(self, actions: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        places = torch.arange(actions.shape[1], device=actions.device)
        x = self.read(actions) + sinusoid(places, self.read.out_features)
        if valid is None:
            valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        mask = valid[:, None, None] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        mixed = torch.where(valid.unsqueeze(-1), self.blocks(x, mask), torch.zeros((), device=x.device))
        mean, log_var = self.write(mixed.sum(1) / valid.sum(1, keepdim=True).clamp(min=1)).chunk(2, -1)
        return mean, log_var
