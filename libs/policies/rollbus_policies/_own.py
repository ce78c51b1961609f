"""A function of somebody's own that makes a torch module, as a policy: ``policy.name: my_net:make``.

Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rollbus_policies._config import ActorCriticConfig
from rollbus_wire.errors import SpecError
from rollbus_wire.own_code import guard
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from torch import nn


class Config(ActorCriticConfig):
    """Settings of head, chunks and critic; ``hidden`` is of an own critic only."""


def plugin(function: Callable[[int], nn.Module]) -> SimpleNamespace:
    """``function`` of the number of inputs makes a module from vectors [B, inputs] to features [B, F].

    The inputs are the observation group "policy" in key order, classes one-hot, images flat.
    """

    def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
        from rollbus_policies.wrap import num_inputs, wrap

        size = num_inputs(spec, frame_stack)
        module = function(size)
        features = _num_features(module, size, config.name)
        return wrap(module, features, spec, critic=critic, frame_stack=frame_stack, config=config)

    return SimpleNamespace(Config=Config, needs=("torch",), make=make)


def _num_features(module: Any, size: int, name: str) -> int:
    """F, as the module gives it for one pass. Raises `SpecError` if it gives something else."""
    import torch

    if not isinstance(module, torch.nn.Module):
        raise SpecError(f"policy.name {name} gave {type(module).__name__}; it must give a torch.nn.Module")
    with guard(name, f"a pass over inputs [2, {size}]"), torch.no_grad():
        features = module(torch.zeros(2, size))
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        came = list(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise SpecError(
            f"policy.name {name}: its module makes {came} of inputs [2, {size}]; it must give features [2, F]"
        )
    return features.shape[1]
