"""Episodes of an environment with every kind of observation."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SPEC = EnvSpec(
    "kinds",
    {
        "joints": ArraySpec("float32", (3,), -1.0, 1.0),
        "cam/left": ArraySpec("uint8", (3, 4, 5), layout="CHW"),
        "grid": ArraySpec("float32", (2, 3)),
        "height": ArraySpec("float32", ()),
    },
    ActionSpec("continuous", (2,), low=[-1.0, -2.0], high=[1.0, 2.0]),
    has_success=True,
    control_period_s=0.05,
)


def observations(draw: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    return {
        "joints": draw.uniform(-1, 1, (count, 3)).astype(np.float32),
        "cam/left": draw.integers(0, 256, (count, 3, 4, 5), dtype=np.uint8),
        "grid": draw.normal(size=(count, 2, 3)).astype(np.float32),
        "height": draw.normal(size=count).astype(np.float32),
    }


def episode(length: int, seed: int, *, ends: str = "truncated", success: bool | None = None) -> Episode:
    draw = np.random.default_rng(seed)
    last = {key: value[0] for key, value in observations(draw, 1).items()}
    return Episode(
        observations(draw, length), draw.uniform(-1, 1, (length, 2)).astype(np.float32),
        np.arange(length, dtype=np.float32), np.full(length, 2, np.uint8),
        terminated=ends == "terminated", truncated=ends == "truncated", final_obs=last,
        success=bool(seed % 2) if success is None else success, seed=seed, task="stack",
    )  # fmt: skip


def write(folder: Path, episodes: list[Episode], spec: EnvSpec = SPEC, **options: object) -> DatasetWriter:
    with DatasetWriter(folder, spec, **options) as writer:  # type: ignore[arg-type]
        for each in episodes:
            writer.add(each)
    return writer


def assert_same(a: Episode, b: Episode) -> None:
    """Bit for bit."""
    for key in SPEC.observation:
        assert a.obs[key].dtype == b.obs[key].dtype and (a.obs[key] == b.obs[key]).all(), key
        assert a.final_obs is not None and b.final_obs is not None
        assert (a.final_obs[key] == b.final_obs[key]).all(), key
    for name in ("action", "reward", "source"):
        assert (getattr(a, name) == getattr(b, name)).all(), name
    for name in ("terminated", "truncated", "success", "seed", "task"):
        assert getattr(a, name) == getattr(b, name), name
