"""The torch side of the plug-ins mlp, recurrent and cnn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rollbus_policies._convolutions import Convolutions
from rollbus_policies._critics import ValueNet
from rollbus_policies._memory import CELLS, Gru, Lstm
from rollbus_policies._networks import Mlp
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._policy import ActorCritic
from rollbus_policies._transforms import ImageInput, VectorInput, is_image
from rollbus_policies._value_heads import Scalar, TwoHot
from rollbus_policies.trunk import Trunk
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from rollbus_policies import cnn, mlp, recurrent


class MlpPolicy(ActorCritic):
    """Features are the last hidden layer."""

    def __init__(self, config: mlp.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, frame_stack)
        self._inputs = VectorInput(spec, self.keys, frame_stack)
        self.encoder = Mlp(self._inputs.size, config.hidden, config.activation, config.init)
        self.build_output(self.encoder.size)
        self._critic_inputs = VectorInput(spec, self.critic_keys, frame_stack)
        if critic:
            size, hidden = self.encoder.size, []
            if config.critic == "own":
                size, hidden = self._critic_inputs.size, config.critic_widths
            self.build_critic(ValueNet(size, hidden, config.activation, config.init, self.value_head))

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.encoder(self._inputs(obs, self.normaliser)), None

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        assert self.critic is not None
        own = self.config.critic == "own"
        return self.critic(self._critic_inputs(obs, self.normaliser) if own else features)

    def describe_features(self, trunk: Trunk, obs: Mapping[str, str], state: str) -> tuple[str, str]:
        return self.encoder.describe(trunk, self._inputs.describe(trunk, obs, self.normaliser)), ""

    def describe_critic(self, trunk: Trunk, obs: Mapping[str, str], features: str) -> str:
        own = self.config.critic == "own"
        x = self._critic_inputs.describe(trunk, obs, self.normaliser) if own else features
        return self.critic.describe(trunk, x)  # type: ignore[union-attr,operator]


class RecurrentPolicy(ActorCritic):
    """Features are what the memory gives out behind each decision's observation."""

    def __init__(self, config: recurrent.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, frame_stack)
        size = config.state_size
        self._inputs = VectorInput(spec, self.keys, frame_stack)
        self.encoder = Mlp(self._inputs.size, config.hidden, config.activation, config.init)
        self.add_module(config.cell, CELLS[config.cell](self.encoder.size, size, config.init))
        self.spec.state, self.spec.state_size = "hub", self.memory.state_size
        self.build_output(size)
        self._critic_inputs = VectorInput(spec, self.critic_keys, frame_stack)
        if critic:
            hidden: list[int] = []
            if config.critic == "own":
                size, hidden = size + self._critic_inputs.size, config.critic_widths
            self.build_critic(ValueNet(size, hidden, config.activation, config.init, self.value_head))

    @property
    def memory(self) -> Gru | Lstm:
        """The recurrent layer, a module named after its cell."""
        return self._modules[self.config.cell]  # type: ignore[return-value]

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        x = self.encoder(self._inputs(obs, self.normaliser))
        if x.ndim == 2:
            assert state is not None
            out, state = self.memory.advance(x.unsqueeze(0), state)
            return out.squeeze(0), state
        if state is None or start is None or start.shape != x.shape[:2]:
            raise SpecError(
                "a recurrent policy is evaluated on [T, n] sequences with `state` [n, S] and `start` "
                f"[T, n]; the batch has {list(x.shape[:-1])}"
            )
        return self._sequence(x, state, start)

    def _sequence(self, x: Tensor, state: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """The memory over the stretches between the decisions at which some row starts anew."""
        length = x.shape[0]
        begins = [t for t in start.any(1).nonzero().flatten().tolist() if t] if length else []
        outputs = []
        for begin, end in zip([0, *begins], [*begins, length]):
            state = state.masked_fill(start[begin].unsqueeze(-1), 0.0)
            out, state = self.memory.advance(x[begin:end], state)
            outputs.append(out)
        return torch.cat(outputs), state

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        assert self.critic is not None
        if self.config.critic == "shared":
            return self.critic(features)
        return self.critic(torch.cat([self._critic_inputs(obs, self.normaliser), features.detach()], -1))

    def describe_features(self, trunk: Trunk, obs: Mapping[str, str], state: str) -> tuple[str, str]:
        x = self.encoder.describe(trunk, self._inputs.describe(trunk, obs, self.normaliser))
        return self.memory.describe(trunk, x, state)

    def describe_critic(self, trunk: Trunk, obs: Mapping[str, str], features: str) -> str:
        x = features
        if self.config.critic == "own":
            x = trunk.concat([self._critic_inputs.describe(trunk, obs, self.normaliser), features])
        return self.critic.describe(trunk, x)  # type: ignore[union-attr,operator]


class _ImageEncoder(nn.Module):
    """Convolutions over the images of ``keys``, then the other keys, then further layers."""

    def __init__(self, config: cnn.Config, spec: EnvSpec, keys: list[str], frame_stack: int) -> None:
        super().__init__()
        images = [key for key in keys if is_image(spec.observation[key])]
        if not images:
            raise SpecError(
                f"{spec.name}: a cnn policy needs an observation with layout HWC or CHW among "
                f"{', '.join(keys)}; set policy.name: mlp"
            )
        rest = [key for key in keys if key not in images]
        self._images = ImageInput(spec, images, frame_stack)
        self._vectors = VectorInput(spec, rest, frame_stack) if rest else None
        self.convolutions = Convolutions(
            config.architecture, self._images.channels, self._images.height, self._images.width,
            config.feature_size, config.init, config.channel_factor,
        )  # fmt: skip
        size = self.convolutions.size + (self._vectors.size if self._vectors else 0)
        self.layers = Mlp(size, config.hidden, config.activation, config.init)
        self.size = self.layers.size

    def forward(self, obs: Mapping[str, Tensor], normalisers: Normalisers) -> Tensor:
        images, lead = self._images(obs)
        x = self.convolutions(images).reshape(*lead, -1)
        if self._vectors is not None:
            x = torch.cat([x, self._vectors(obs, normalisers)], -1)
        return self.layers(x)

    def describe(self, trunk: Trunk, obs: Mapping[str, str], normalisers: Normalisers) -> str:
        x = self.convolutions.describe(trunk, self._images.describe(trunk, obs))
        if self._vectors is not None:
            x = trunk.concat([x, self._vectors.describe(trunk, obs, normalisers)])
        return self.layers.describe(trunk, x)


class _ImageCritic(nn.Module):
    """What ``head`` takes, from images: an encoder of its own and a layer."""

    def __init__(
        self, config: cnn.Config, spec: EnvSpec, keys: list[str], frame_stack: int, head: Scalar | TwoHot
    ) -> None:
        super().__init__()
        self.encoder = _ImageEncoder(config, spec, keys, frame_stack)
        self.net = ValueNet(self.encoder.size, [], config.activation, config.init, head)

    def forward(self, obs: Mapping[str, Tensor], normalisers: Normalisers) -> Tensor:
        return self.net(self.encoder(obs, normalisers))

    def describe(self, trunk: Trunk, obs: Mapping[str, str], normalisers: Normalisers) -> str:
        return self.net.describe(trunk, self.encoder.describe(trunk, obs, normalisers))


class CnnPolicy(ActorCritic):
    """Features are those of the convolutions, joined with the other observations."""

    def __init__(self, config: cnn.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, frame_stack)
        self.encoder = _ImageEncoder(config, spec, self.keys, frame_stack)
        self.build_output(self.encoder.size)
        if critic and config.critic == "own":
            self.build_critic(_ImageCritic(config, spec, self.critic_keys, frame_stack, self.value_head))
        elif critic:
            size = self.encoder.size
            self.build_critic(ValueNet(size, [], config.activation, config.init, self.value_head))

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.encoder(obs, self.normaliser), None

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        assert self.critic is not None
        return self.critic(obs, self.normaliser) if self.config.critic == "own" else self.critic(features)

    def describe_features(self, trunk: Trunk, obs: Mapping[str, str], state: str) -> tuple[str, str]:
        return self.encoder.describe(trunk, obs, self.normaliser), ""

    def describe_critic(self, trunk: Trunk, obs: Mapping[str, str], features: str) -> str:
        if isinstance(self.critic, _ImageCritic):
            return self.critic.describe(trunk, obs, self.normaliser)
        return self.critic.describe(trunk, features)  # type: ignore[union-attr,operator]
