"""Small Gymnasium-style environments for the tests, written without gymnasium."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import numpy as np


class Box:
    def __init__(self, low: Any, high: Any, shape: Tuple[int, ...], dtype: Any) -> None:
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    shape: Tuple[int, ...] = ()

    def __init__(self, n: int, start: int = 0) -> None:
        self.n, self.start = n, start


class MultiDiscrete:
    def __init__(self, nvec: List[int]) -> None:
        self.nvec = np.array(nvec)
        self.shape = self.nvec.shape


class MultiBinary:
    def __init__(self, n: int) -> None:
        self.n, self.shape = n, (n,)


class DictSpace:
    shape = None

    def __init__(self, spaces: Dict[str, Any]) -> None:
        self.spaces = spaces


class Walk:
    """A point starts near 0 and moves by the action; the episode ends beyond 3."""

    has_success = True

    def __init__(self, step_size: float = 1.0) -> None:
        self.observation_space = Box(-100.0, 100.0, (2,), np.float64)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.step_size, self.closed = step_size, False
        self.place, self.count = 0.0, 0

    def reset(
        self, seed: Optional[int] = None, options: Optional[Dict[str, Any]] = None
    ) -> Tuple[np.ndarray, Dict[str, Any]]:
        self.place = np.random.RandomState(seed).uniform(-0.1, 0.1)
        self.place += (options or {}).get("place", 0.0)
        self.count = 0
        return self.observation(), {}

    def observation(self) -> np.ndarray:
        return np.array([self.place, self.count], np.float64)

    def step(self, action: np.ndarray) -> Tuple[np.ndarray, float, bool, bool, Dict[str, Any]]:
        self.place += self.step_size * float(action[0]) + 0.5
        self.count += 1
        over = self.place > 3
        return self.observation(), self.place, over, False, {"success": over}

    def close(self) -> None:
        self.closed = True


class TimeLimit:
    """Named and shaped as Gymnasium's wrapper."""

    def __init__(self, env: Any, max_episode_steps: int) -> None:
        self.env, self._max_episode_steps = env, max_episode_steps
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.elapsed = 0

    def reset(self, **arguments: Any) -> Any:
        self.elapsed = 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        self.elapsed += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated or self.elapsed >= self._max_episode_steps, info


class Wrapper:
    """An outer wrapper that adds nothing."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, **arguments: Any) -> Any:
        return self.env.reset(**arguments)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Spaces:
    """Maps, classes, images and integers; its step tells what it was given."""

    def __init__(self) -> None:
        self.observation_space = DictSpace(
            {
                "camera": Box(0, 255, (4, 5, 3), np.uint8),
                "arm": DictSpace({"joint": Box(-1, 1, (2,), np.float64), "mode": Discrete(3, start=1)}),
            }
        )
        self.action_space = Discrete(3, start=-1)
        self.given: List[Any] = []

    def observation(self) -> Dict[str, Any]:
        camera = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
        return {"camera": camera, "arm": {"joint": np.array([0.1, -0.2]), "mode": 3}}

    def reset(self, seed: Optional[int] = None, options: Any = None) -> Any:
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        self.given.append(action)
        return self.observation(), 1.0, False, False, {}
