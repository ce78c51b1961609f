"""Low-rank adapters (Hu et al., 2106.09685) by peft, in the attention blocks of a policy.

Only the adapters are trained; the policy with its adapters off is what it was before. Actors get plain
weights, the adapters merged into them, so that they need no peft.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from rollbus_wire.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Layers of `rollbus_policies._transformer.Block`, which are called as modules.
_TARGETS = r".*\.(attention\.(query|both|output)|wide|narrow)"


def adapt(policy: nn.Module, rank: int) -> None:
    """Put adapters into ``policy`` and freeze the rest. Raises `ConfigError` if it has no such layers."""
    if importlib.util.find_spec("peft") is None:
        raise MissingPackage("algorithm.lora_rank needs peft; run: pip install 'rollbus[lora]'")
    from peft import LoraConfig, inject_adapter_in_model

    try:
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=_TARGETS), policy)
    except ValueError:
        raise ConfigError(
            f"algorithm.lora_rank: {rank}: a {type(policy).__name__} has no attention blocks; use "
            "transformer, act, diffusion or flow, or set lora_rank: 0"
        ) from None
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("lora_" in name)


def merged(policy: nn.Module) -> dict[str, Tensor]:
    """The tensors of ``policy`` under the names that it had before `adapt`, adapters added in."""
    from peft.tuners.lora import Linear

    added: dict[str, Any] = {
        f"{name}.base_layer.weight": module.get_delta_weight("default").detach()
        for name, module in policy.named_modules() if isinstance(module, Linear)
    }  # fmt: skip
    return {
        name.replace(".base_layer.", "."): value + added[name] if name in added else value
        for name, value in policy.state_dict().items() if "lora_" not in name
    }  # fmt: skip
