"""The torch side of a process: its policy, and what belongs to the process as a whole."""

from __future__ import annotations

from typing import Any

from rollbus_wire.spec import EnvSpec


def make_policy(recipe: Any, spec: EnvSpec, *, critic: bool) -> Any:
    """The policy module of the recipe for environment ``spec``."""
    from rollbus_policies import base

    return base.make(recipe.policy, spec, critic=critic, frame_stack=recipe.env.frame_stack)


def import_torch(threads: int, deterministic: bool, seed: int) -> None:
    """Set what belongs to the process, not to a service: threads, determinism, initial weights."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
