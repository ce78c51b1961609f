"""Folders of models that are no policies (value and reward models): weights and a card that says of what.

``<kind>.safetensors`` holds the tensors, ``<kind>.json`` by whom and with which settings they were made, of
which data sets, and the sha256 of the tensors' file, ``content``. A folder is there whole or not at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.datasets.files import UNFINISHED, digest_of, read_json, replace, to_json
from rollbus_wire.errors import ConfigError

#: Kind of model -> the command that trains one.
VALUE, REWARD = "value", "reward"
_KINDS = {VALUE: "rollbus value DATASET", REWARD: "rollbus reward DATASET"}


def refuse_existing(folder: Path) -> None:
    """Raise `ConfigError` if ``folder`` is there already, before anything is trained for it."""
    if folder.exists():
        raise ConfigError(f"{folder} exists; give a new folder with --out")


def write(
    folder: Path, kind: str, tensors: Mapping[str, np.ndarray], card: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a new ``folder``; its card, with ``format`` and ``content`` added."""
    from safetensors.numpy import save_file

    work = folder.with_name(f".{folder.name}-{os.getpid()}{UNFINISHED}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    weights = _weights(work, kind)
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, weights)
    whole = {"format": f"rollbus-{kind}", **card, "content": digest_of(weights)}
    replace(_card(work, kind), to_json(whole))
    work.rename(folder)
    return whole


def read_card(folder: Path, kind: str) -> dict[str, Any]:
    """What the model in ``folder`` says of itself. Raises `ConfigError` if it is not as it was written."""
    path = _card(folder, kind)
    if not path.exists():
        raise ConfigError(f"{folder} holds no {kind} model; {_KINDS[kind]} --out {folder} trains one")
    card, weights = read_json(path), _weights(folder, kind)
    if not weights.exists() or digest_of(weights) != card.get("content"):
        raise ConfigError(f"{weights} is not the file that was written; train the {kind} model anew")
    return card


def read_tensors(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """The tensors of the model in ``folder``."""
    from safetensors.numpy import load_file

    found: dict[str, np.ndarray] = load_file(_weights(folder, kind))
    return found


def _weights(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.safetensors"


def _card(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.json"
