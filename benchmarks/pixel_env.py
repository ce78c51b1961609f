"""84 x 84 x 3 uint8 frames that cost nothing to make, so that moving and learning from them is measured."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ID = "PixelBench-v0"
_EPISODE = 200


class PixelEnv(gymnasium.Env):
    """64 frames drawn once; the action that equals the step modulo 6 earns 1. Episodes of 200 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)
    metadata: dict[str, Any] = {"render_modes": []}
    frames = np.random.default_rng(0).integers(0, 256, (64, 84, 84, 3), dtype=np.uint8)

    def __init__(self) -> None:
        self.now = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.now = 0
        return self.frames[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.now += 1
        reward = float(int(action) == self.now % 6)
        frame = self.frames[(7 * self.now + int(action)) % len(self.frames)]
        return frame, reward, False, self.now >= _EPISODE, {}


def register() -> None:
    """Make `ID` known to gymnasium; ``gymnasium.make("pixel_env:PixelBench-v0")`` does so by importing."""
    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point=PixelEnv)


register()
