"""Value functions that algorithms and policies build: V(s) and ensembles of Q(s, a)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rollbus_policies._batch_renorm import BatchRenorm
from rollbus_policies._networks import ACTIVATIONS, Mlp, exact
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._padding import Padding
from rollbus_policies._transforms import VectorInput, group_keys
from rollbus_policies._value_heads import Scalar, TwoHot
from rollbus_policies.trunk import Trunk
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import TASK, EnvSpec


class ValueNet(nn.Module):
    """What ``head`` takes, from a vector: [..., size_in] -> [..., K], 1 or the atoms of a distribution."""

    def __init__(
        self, size_in: int, hidden: Sequence[int], activation: str, init: str, head: Scalar | TwoHot
    ) -> None:
        super().__init__()
        self.body = Mlp(size_in, hidden, activation, init)
        self.output = head.layer(self.body.size, init)

    def forward(self, x: Tensor) -> Tensor:
        return exact(self.output, self.body(x))

    def describe(self, trunk: Trunk, x: str) -> str:
        """The same as operations of ``trunk`` on value ``x``."""
        return trunk.add("linear", self.body.describe(trunk, x), self.output.weight, self.output.bias)


class _EnsembleLinear(nn.Module):
    """M layers at once: [M, L, in] -> [M, L, out]; each as torch initialises one `nn.Linear`."""

    def __init__(self, num_heads: int, size_in: int, size_out: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(size_in)
        self.weight = nn.Parameter(torch.empty(num_heads, size_in, size_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_heads, 1, size_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class QEnsemble(nn.Module):
    """M independent action-value functions, evaluated together.

    Reads the observations of one group and an action in [-1, 1] units (`squash` of a stored one).
    """

    def __init__(
        self,
        spec: EnvSpec,
        num_heads: int,
        hidden: Sequence[int],
        *,
        frame_stack: int = 1,
        activation: str = "relu",
        group: str = "policy",
        layer_norm: bool = False,
        batch_renorm: int | None = None,
        num_actions: int = 1,
    ) -> None:
        """``num_actions``: executed ones of a decision, which it takes side by side; 0: V(s).

        ``batch_renorm``: batch renormalisation of inputs and hidden layers, with so many batches of warm-up.
        """
        super().__init__()
        if num_actions and spec.action.kind != "continuous":
            raise SpecError(f"{spec.name}: Q(s, a) needs continuous actions, these are {spec.action.kind}")
        self.num_heads = num_heads
        self._inputs = VectorInput(spec, group_keys(spec, group), frame_stack)
        self._padding = Padding(spec, frame_stack > 1) if spec.padded else None
        self._activation, self._action_dims = ACTIVATIONS[activation], len(spec.action.shape)
        sizes = [self._inputs.size + num_actions * spec.action.size, *hidden]
        self.layers = nn.ModuleList(_EnsembleLinear(num_heads, a, b) for a, b in zip(sizes, sizes[1:]))
        self.output = _EnsembleLinear(num_heads, sizes[-1], 1)
        self.renorms = nn.ModuleList()
        if batch_renorm is not None:
            self.renorms.extend(BatchRenorm(num_heads, size, warm_up=batch_renorm) for size in sizes)
        self.norms = nn.ParameterList()
        if layer_norm:
            for size in sizes[1:]:
                self.norms.append(nn.Parameter(torch.ones(num_heads, 1, size)))
                self.norms.append(nn.Parameter(torch.zeros(num_heads, 1, size)))

    def forward(
        self,
        batch: Mapping[str, Tensor],
        action: Tensor | None,
        prefix: str = "obs/",
        normalisers: Normalisers | None = None,
        running: bool = False,
    ) -> Tensor:
        """float32 [M, ...] for ``batch[prefix + key]`` [..., ...] and ``action`` [..., *shape], None for V.

        ``normalisers``: the policy's, to see observations as the policy does; None: raw ones. ``running``:
        batch renormalisation goes by its moving averages.
        """
        seen = {key: batch[prefix + key] for key in self._inputs.keys}
        if self._padding is not None:
            seen = self._padding.filled(seen | {TASK: batch[prefix + TASK]}, normalisers)
        obs = self._inputs(seen, normalisers)
        lead = obs.shape[:-1]
        both = obs if action is None else torch.cat([obs, self._own(seen, action.reshape(*lead, -1))], -1)
        x = both.reshape(1, -1, self.layers_in).expand(self.num_heads, -1, -1)
        if len(self.renorms):
            x = self.renorms[0](x, running)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if len(self.norms):
                x = torch.addcmul(
                    self.norms[2 * i + 1], functional.layer_norm(x, x.shape[-1:]), self.norms[2 * i]
                )
            x = self._activation(x)
            if len(self.renorms):
                x = self.renorms[i + 1](x, running)
        return self.output(x).float().reshape(self.num_heads, *lead)

    def _own(self, obs: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """``action`` [..., n E] with zeros in the place of padding."""
        if self._padding is None:
            return action
        own = self._padding.own_elements(obs)
        own = own.repeat(*[1] * (own.ndim - 1), action.shape[-1] // own.shape[-1])
        return torch.where(own, action, torch.zeros((), dtype=action.dtype, device=action.device))

    @property
    def layers_in(self) -> int:
        """Width of observation and action together."""
        first = self.layers[0] if len(self.layers) else self.output
        return int(first.weight.shape[1])  # type: ignore[union-attr,index]


def make_q(
    config: Any, spec: EnvSpec, num_heads: int, frame_stack: int = 1, *, layer_norm: bool = False,
    batch_renorm: int | None = None, num_actions: int = 1,
) -> QEnsemble:  # fmt: skip
    """`QEnsemble` with ``config.critic_hidden`` and, where ``config`` states it, its ``critic_group``."""
    return QEnsemble(
        spec,
        num_heads,
        config.critic_hidden,
        frame_stack=frame_stack,
        group=getattr(config, "critic_group", "policy"),
        layer_norm=layer_norm,
        batch_renorm=batch_renorm,
        num_actions=num_actions,
    )
