"""Statistics of features for meta/stats.json, over all frames, without keeping them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_core.datasets.features import Feature


class RunningStats:
    """min, max, mean, std (divisor n) and count of one feature.

    Numbers: per element, [*shape]. Images: per channel of values in [0, 1], [C, 1, 1].
    """

    def __init__(self, feature: Feature) -> None:
        self.feature, self.count = feature, 0
        shape = (feature.shape[-1],) if feature.is_image else feature.shape
        self._sum, self._squares = np.zeros(shape), np.zeros(shape)
        self._min, self._max = np.full(shape, np.inf), np.full(shape, -np.inf)
        #: Elements that one frame gives to each statistic.
        self._weight = int(np.prod(feature.shape[:-1])) if feature.is_image else 1

    def add(self, values: np.ndarray) -> None:
        """T frames, [T, *shape]."""
        x = values.astype(np.float64)
        if self.feature.is_image:
            x = x.reshape(-1, x.shape[-1]) / 255.0
        self.count += len(values)
        self._sum += x.sum(0)
        self._squares += (x * x).sum(0)
        self._min, self._max = np.minimum(self._min, x.min(0)), np.maximum(self._max, x.max(0))

    def to_data(self) -> dict[str, Any]:
        """As in stats.json."""
        num = max(1, self.count * self._weight)
        mean = self._sum / num
        std = np.sqrt(np.maximum(self._squares / num - mean * mean, 0.0))
        parts = {"min": self._min, "max": self._max, "mean": mean, "std": std}
        shape = (-1, 1, 1) if self.feature.is_image else self._sum.shape
        return {name: part.reshape(shape).tolist() for name, part in parts.items()} | {"count": [self.count]}

    def load(self, data: Mapping[str, Any]) -> None:
        """Go on from what `to_data` gave."""
        self.count = int(data["count"][0])
        num, shape = self.count * self._weight, self._sum.shape
        mean, std = (np.asarray(data[name], np.float64).reshape(shape) for name in ("mean", "std"))
        self._sum, self._squares = mean * num, (std * std + mean * mean) * num
        self._min, self._max = (np.asarray(data[name], np.float64).reshape(shape) for name in ("min", "max"))
