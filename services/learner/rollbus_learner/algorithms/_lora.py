"""Low-rank adapters (Hu et al., 2106.09685) by peft, on linear layers of a policy.

Only the adapters are trained; the policy with its adapters off is what it was before. Actors get plain
weights, the adapters merged into them, so that they need no peft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollbus_core import extras
from rollbus_wire.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

#: Parts of a policy that are no part of what it decides from: its critic, and what other runs put behind it.
_APART = ("critic.", "steer.", "refine.")
#: Names that a refusal lists.
_LISTED = 12


def adapt(policy: nn.Module, rank: int, modules: Sequence[str] = ()) -> None:
    """Put adapters into ``policy`` and freeze the rest.

    ``modules``: names or their last parts ("attention.query", "wide"), as peft's ``target_modules``; empty:
    all linear layers. Raises `ConfigError` where one names none.
    """
    extras.require("algorithm.lora_rank", ("peft",))
    from peft import LoraConfig, inject_adapter_in_model

    chosen = _chosen(policy, rank, modules)
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=chosen), policy)
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_("lora_" in name)


def _chosen(policy: nn.Module, rank: int, modules: Sequence[str]) -> list[str]:
    """Full names of the linear layers that ``modules`` name; of all of them if it is empty."""
    known = _linear_layers(policy)
    if not known:
        raise ConfigError(
            f"algorithm.lora_rank: {rank}: a {type(policy).__name__} has no linear layers; set lora_rank: 0"
        )
    found: list[str] = []
    for wanted in modules:
        matching = [name for name in known if name == wanted or name.endswith(f".{wanted}")]
        if not matching:
            ends = sorted({name.rpartition(".")[2] for name in known if not name[-1].isdigit()})
            raise ConfigError(
                f"algorithm.lora_modules: {wanted!r} is no linear layer of this {type(policy).__name__}; "
                f"there are {', '.join(known[:_LISTED])}{', ...' if len(known) > _LISTED else ''}"
                + (f" (or by their last parts: {', '.join(ends)})" if ends else "")
            )
        found += [name for name in matching if name not in found]
    return found or known


def _linear_layers(policy: nn.Module) -> list[str]:
    """Those that are called as modules: peft changes calls, not weights that others read.

    `nn.MultiheadAttention`, for one, reads the weights of its output layer.
    """
    from torch import nn

    inside = tuple(
        f"{name}." for name, module in policy.named_modules() if isinstance(module, nn.MultiheadAttention)
    )
    return [
        name
        for name, module in policy.named_modules()
        if type(module) is nn.Linear and not name.startswith((*_APART, *inside))
    ]


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
