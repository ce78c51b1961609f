"""Paint the digit that is asked for: one decision is an 8x8 image, judged by a small classifier.

Images and judge come from scikit-learn (``load_digits``, 1797 handwritten digits; logistic regression on all
of them). The reward is the judge's probability of the digit that was asked for, so that it is not lost on
images that are nearly right; success is whether the judge finds that digit the likeliest. The expert shows a
handwritten image of the digit, or in ``confused`` of all episodes of another one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List

import numpy as np

from rollbus_wire.env import Arrays, Env
from rollbus_wire.errors import ConfigError, MissingPackage
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

from ._toy_base import Advance, Toy, draws

needs: List[str] = ["sklearn"]

SIDE, CLASSES, INK = 8, 10, 16.0


@dataclass
class Config:
    """How the expert errs."""

    confused: float = field(
        default=0.0,
        metadata={"description": "Share of episodes whose expert paints another digit.", "unit": ""},
    )
    expert: bool = field(
        default=False,
        metadata={"description": "Observe the expert's image, as expert_action.", "unit": ""},
    )


class DigitImages(Toy):
    """Rows of one decision each."""

    def __init__(self, config: Config, num_rows: int) -> None:
        super().__init__(num_rows)
        self.confused = config.confused
        images, labels = _handwritten()
        #: Class -> its images, float32 [M, 64] in [-1, 1].
        self.images = [images[labels == digit] for digit in range(CLASSES)]
        self.weights, self.bias = _judge(images, labels)
        size = SIDE * SIDE
        self.spec = EnvSpec(
            name="digit-images",
            observation={"digit": ArraySpec("float32", (CLASSES,), 0.0, 1.0, layout="onehot")},
            action=ActionSpec("continuous", (size,), low=[-1.0] * size, high=[1.0] * size),
            has_success=True,
            optimal_return=1.0,
        )

    def asked(self, rows: np.ndarray) -> np.ndarray:
        """int64 [R]: the digit of each row."""
        return asked(self.seed[rows])

    def look(self, rows: np.ndarray) -> Arrays:
        return {"digit": np.eye(CLASSES, dtype=np.float32)[self.asked(rows)]}

    def expert(self, rows: np.ndarray) -> np.ndarray:
        """float32 [R, 64]: a handwritten image."""
        drawn = draws(self.seed[rows], 4)
        other = (self.asked(rows) + 1 + (drawn[:, 2] * (CLASSES - 1)).astype(np.int64)) % CLASSES
        shown = np.where(drawn[:, 1] < self.confused, other, self.asked(rows))
        return np.stack([self.images[c][int(u * len(self.images[c]))] for c, u in zip(shown, drawn[:, 3])])

    def judge(self, images: np.ndarray) -> np.ndarray:
        """float64 [R, 10]: probability of each digit."""
        raw = images.astype(np.float64) @ self.weights + self.bias
        raw = np.exp(raw - raw.max(1, keepdims=True))
        return raw / raw.sum(1, keepdims=True)

    def advance(self, rows: np.ndarray, actions: np.ndarray) -> Advance:
        probability, asked = self.judge(actions), self.asked(rows)
        reward = probability[np.arange(len(rows)), asked].astype(np.float32)
        return reward, np.ones(len(rows), np.bool_), probability.argmax(1) == asked


def asked(seeds: np.ndarray) -> np.ndarray:
    """int64 [R]: the digit that episodes of ``seeds`` uint64 [R] ask for."""
    return (draws(seeds, 1)[:, 0] * CLASSES).astype(np.int64)


def _handwritten() -> Any:
    """(images float32 [M, 64] in [-1, 1], digits int64 [M])."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise MissingPackage("env.name: digit_images needs scikit-learn: pip install scikit-learn") from None
    data = load_digits()
    return (data.data / (INK / 2) - 1.0).astype(np.float32), data.target.astype(np.int64)


def _judge(images: np.ndarray, labels: np.ndarray) -> Any:
    """(weights [64, 10], bias [10]) of logistic regression; the same at each call."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=0.1, max_iter=500).fit(images, labels)
    return fitted.coef_.T, fitted.intercept_


def make(config: Config, num_rows: int) -> Env:
    """``num_rows`` rows; raises `ConfigError` for a share that is none."""
    if not 0.0 <= config.confused <= 1.0:
        raise ConfigError("env.confused is %s; a share between 0 and 1" % config.confused)
    env = DigitImages(config, num_rows)
    if config.expert:
        env.show_expert()
    return env
