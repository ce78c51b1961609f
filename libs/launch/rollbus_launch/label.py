"""Value models of a data set, and the labels that they give it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollbus_core import model_folders
from rollbus_core.config.nearest import hint
from rollbus_core.config.problems import first_problem
from rollbus_core.config.source import parse, plain
from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.fit import FittedDataset
from rollbus_core.datasets.labels import Labels, write_labels
from rollbus_core.datasets.reader import Dataset
from rollbus_core.datasets.sham import permuted
from rollbus_core.model_folders import VALUE
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError

LABELLERS = "rollbus_learner.labellers"


def settings(package: str, by: str, overrides: Sequence[str]) -> Any:
    """Settings of the plug-in ``by`` of ``package`` from ``key=value``. Raises `ConfigError`."""
    model = lookup.find(package, by).Config
    given = {}
    for text in overrides:
        key, _, value = text.partition("=")
        if key not in model.model_fields:
            known = list(model.model_fields)
            raise ConfigError(f"{by} has no setting {key!r}, only {', '.join(known)}{hint(key, known)}")
        given[key] = plain(parse(value, key))
    try:
        return model(**given)
    except ValidationError as error:
        raise ConfigError(f"{by}: {first_problem(error)}") from None


def train_value(data: Path, by: str, config: Any, out: Path) -> dict[str, Any]:
    """Train the value model of labeller ``by`` on a data set and write it to a new folder; its card."""
    model_folders.refuse_existing(out)
    dataset, episodes = read_episodes(data)
    module = lookup.find(LABELLERS, by).train(config, episodes, dataset.spec)
    card = {
        "by": by, "settings": config.model_dump(mode="json"),
        "dataset": dataset.content(), "episodes": len(episodes),
    }  # fmt: skip
    return model_folders.write(out, VALUE, arrays(module), card)


def arrays(module: Any) -> dict[str, Any]:
    """The tensors of a module as numpy arrays."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in module.state_dict().items()}


def label(data: Path, value: Path, out: Path, permute: int = 0) -> dict[str, Any]:
    """Label a data set with the value model in ``value``; the card of the labels.

    ``permute``: a seed by which the labels of all decisions change places: what a sham arm learns from.
    """
    import numpy as np
    import torch

    from rollbus_learner.labellers._base import labels_of

    card = model_folders.read_card(value, VALUE)
    by, config = card["by"], lookup.find(LABELLERS, card["by"]).Config(**card["settings"])
    dataset, episodes = read_episodes(data)
    labeller, stored = lookup.find(LABELLERS, by), model_folders.read_tensors(value, VALUE)
    tensors = {name: torch.from_numpy(array) for name, array in stored.items()}
    torch.manual_seed(0)
    model = labeller.rebuild(config, tensors, dataset.spec)
    scores = labeller.score(config, model, episodes, dataset.spec)
    labels = labels_of(scores, episodes, config.good)
    if permute:
        labels = permuted(labels, permute)
    indices = [info.index for info in dataset.episodes()]
    found = Labels(
        {i: np.asarray(s, np.float32) for i, s in zip(indices, scores)}, dict(zip(indices, labels))
    )
    about = {"by": by, "settings": card["settings"], "dataset": dataset.content(), "value": card["content"],
             "permuted": permute}  # fmt: skip
    write_labels(out, found, about)
    return {**about, "content": found.content(), "good": found.share(), "frames": dataset.num_frames}


def read_episodes(data: Path) -> tuple[Dataset, list[Episode]]:
    """A data set that Rollbus wrote, and all of its episodes. Raises `ConfigError`."""
    dataset = Dataset(data)
    if dataset.spec is None:
        raise ConfigError(f"{data} was not written by Rollbus, so nothing says what is observed in it")
    chosen = [info.index for info in dataset.episodes()]
    return dataset, [episode for _, episode in FittedDataset(dataset, dataset.spec).episodes(chosen)]


def content_of(out: Path) -> str:
    """Hash of labels or a value model. Raises `ConfigError`."""
    path = out / "labels.json"
    if path.exists():
        return str(json.loads(path.read_text())["content"])
    return str(model_folders.read_card(out, VALUE)["content"])
