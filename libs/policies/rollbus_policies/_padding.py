"""Which elements of observations and actions are a row's own, where tasks share one padded spec.

The rest is masked here and nowhere else: policies and critics see padding as zeros, whatever it holds, and a
head counts a row's own elements alone (`_heads_masked`). Symbols: K tasks, E elements of an action.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._normaliser import Normalisers
from rollbus_wire.spec import TASK, EnvSpec, TaskSpec


class Padding(nn.Module):
    """Tables over the tasks of ``env``; nothing of it is a weight. ``stacked``: observations are of K frames,
    and the newest one says the task.
    """

    elements: Tensor
    choices: Tensor

    def __init__(self, env: EnvSpec, stacked: bool) -> None:
        super().__init__()
        self._stacked = stacked
        #: Observations with padding -> the name of their table.
        self.keys: dict[str, str] = {}
        for key in sorted({key for task in env.tasks for key in task.observation}):
            self.keys[key] = f"own_{len(self.keys)}"
            table = np.stack([_own(task, key, env.observation[key].shape) for task in env.tasks])
            self._table(self.keys[key], table)
        self._table("elements", np.stack([_placed(task.action, env.action.size) for task in env.tasks]))
        if env.action.kind != "continuous":
            self._table("choices", np.stack([_choices(task, env.action.num) for task in env.tasks]))
        self._discrete = env.action.kind != "continuous"

    def _table(self, name: str, table: np.ndarray) -> None:
        self.register_buffer(name, torch.from_numpy(table), persistent=False)

    def own_elements(self, obs: Mapping[str, Tensor]) -> Tensor:
        """bool [..., E]: the action elements of each row's task."""
        return self.elements[self._task(obs)]

    def own_outputs(self, obs: Mapping[str, Tensor], num_actions: int) -> Tensor:
        """What `_heads_masked` takes for decisions of ``num_actions``: elements, or choices of all elements
        side by side, bool [..., num_actions * n]."""
        table = self.choices if self._discrete else self.elements
        own = table[self._task(obs)]
        return own.repeat(*[1] * (own.ndim - 1), num_actions)

    def own(self, key: str, obs: Mapping[str, Tensor]) -> Tensor:
        """bool [..., *shape]: the elements of observation ``key`` of each row's task."""
        found: Tensor = getattr(self, self.keys[key])[self._task(obs)]
        return found

    def filled(self, obs: dict[str, Tensor], normalisers: Normalisers | None) -> dict[str, Tensor]:
        """``obs`` [..., (K,) *shape] with what becomes 0 by normalisation in the place of padding."""
        found = dict(obs)
        for key in self.keys.keys() & obs.keys():
            own, x = self.own(key, obs), obs[key]
            if self._stacked:
                own = own.unsqueeze(obs[TASK].ndim - 1)
            normaliser = None if normalisers is None else normalisers.of(key)
            if normaliser is None:
                found[key] = torch.where(own, x, torch.zeros((), dtype=x.dtype, device=x.device))
            else:
                found[key] = torch.where(own, x.float(), normaliser.shift)
        return found

    def _task(self, obs: Mapping[str, Tensor]) -> Tensor:
        """[...]; of a stack that of the newest frame."""
        task = obs[TASK]
        return (task.select(-1, -1) if self._stacked else task).long()


def _placed(places: list[int], size: int) -> np.ndarray:
    found = np.zeros(size, bool)
    found[places] = True
    return found


def _own(task: TaskSpec, key: str, shape: tuple[int, ...]) -> np.ndarray:
    if key not in task.observation:
        return np.ones(shape, bool)
    return _placed(task.observation[key], int(np.prod(shape))).reshape(shape)


def _choices(task: TaskSpec, num: list[int]) -> np.ndarray:
    """bool [sum of num]: of an element that the task does not have the first choice alone."""
    own = dict(zip(task.action, task.num))
    return np.concatenate([np.arange(n) < own.get(place, 1) for place, n in enumerate(num)])
