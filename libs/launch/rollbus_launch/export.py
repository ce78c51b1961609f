"""A trained policy as files that need no Rollbus: weights, an ONNX model, and a card that describes both."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rollbus_core import extras
from rollbus_core.checkpoints import resolve
from rollbus_core.config.load import load_resolved
from rollbus_core.datasets.files import digest_of, replace, to_json
from rollbus_core.paths import RunPaths
from rollbus_wire.errors import CheckpointError, ConfigError

WEIGHTS, GRAPH, CARD = "policy.safetensors", "policy.onnx", "policy.json"
#: What an export consists of.
FILES = (WEIGHTS, GRAPH, CARD)


def export(paths: RunPaths, which: str, out: Path) -> dict[str, Any]:
    """Write the policy of checkpoint ``which`` of a run to folder ``out``, whole or not at all; the card."""
    if out.exists():
        raise ConfigError(f"{out} exists; give a new folder with --out")
    extras.require("an export", extras.EXPORT)
    work = out.with_name(f".{out.name}-{os.getpid()}.unfinished")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        card = _write(paths, resolve(paths.checkpoints, which), work)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return card


def read_card(folder: Path) -> dict[str, Any]:
    """What an export says of itself. Raises `CheckpointError`."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} is no export: {error}") from None
    return card


def _write(paths: RunPaths, checkpoint: Path, out: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import save_file

    from rollbus_core.checkpoints import load_policy_tensors, spec_of
    from rollbus_launch.policy_module import make_policy
    from rollbus_policies._export import export as export_policy

    recipe = load_resolved(paths.config).recipe
    tensors, manifest = load_policy_tensors(checkpoint)
    spec = spec_of(checkpoint, manifest)
    policy = make_policy(recipe, spec, critic=False)
    own = policy.state_dict()
    kept = {name: torch.from_numpy(value) for name, value in tensors.items() if name in own}
    policy.load_state_dict(kept)
    save_file({name: value.contiguous() for name, value in kept.items()}, out / WEIGHTS)
    made = export_policy(policy, spec, out / GRAPH)
    card = {
        "format": "rollbus-policy", "version": 1, "policy": recipe.policy.model_dump(mode="json"),
        "spec": spec.to_data(), **made, "mode": "mode",
        "env_steps": manifest["env_steps"], "updates": manifest["updates"],
        "files": {name: digest_of(out / name) for name in (WEIGHTS, GRAPH)},
    }  # fmt: skip
    replace(out / CARD, to_json(card))
    return card
