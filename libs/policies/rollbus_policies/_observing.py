"""What all policies share on the side of observations: keys, normaliser statistics, critic, tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._condition import CONDITION, GOOD
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._padding import Padding
from rollbus_policies._transforms import group_keys, is_vector, to_tensor
from rollbus_policies._value_heads import TwoHot, make_value_head
from rollbus_policies.base import Mode, PolicySpec
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import TASK, EnvSpec

MODES = ("sample", "mode", "random")
#: What the critic gives.
VALUES = frozenset({"value", "value_loss"})


class Observing(nn.Module):
    """Reads observation groups of ``env`` and may have a critic.

    Everything of the critic lies under ``critic.``; actors that record no values have no such tensors.
    """

    spec: PolicySpec
    wants: frozenset[str]
    #: Whether elements that are padding count for nothing in what the family does with actions.
    masks_padding = False

    def __init__(self, config: Any, env: EnvSpec, frame_stack: int) -> None:
        """``config`` has normalise_obs and the fields of `CriticFields`."""
        super().__init__()
        self.config, self._env = config, env
        self.keys = group_keys(env, "policy")
        self.critic_keys = group_keys(env, config.critic_group) if config.critic == "own" else []
        #: What is a row's own, where tasks share a padded spec.
        self.padding = Padding(env, frame_stack > 1) if env.padded else None
        self.normaliser = Normalisers()
        if config.normalise_obs:
            for key in sorted({*self.keys, *self.critic_keys}):
                if is_vector(env.observation[key]):
                    padded = self.padding is not None and key in self.padding.keys
                    self.normaliser.add(key, env.observation[key].shape, padded)
        self.critic: nn.Module | None = None
        self.value_head = make_value_head(config)

    def build_critic(self, critic: nn.Module) -> None:
        """Add the value function; ``critic`` ends in what `value_head` takes."""
        self.critic = critic
        self.spec.extras["value"] = ("float32", ())
        if isinstance(self.value_head, TwoHot):
            self.spec.value_loss, self.wants = True, self.wants | {"value_loss"}

    def valued(self, raw: Tensor, batch: Mapping[str, Tensor], want: Iterable[str]) -> dict[str, Tensor]:
        """What is wanted of "value" and "value_loss" [...] of ``raw`` [..., K], which the critic gave."""
        result = {"value": self.value_head(raw)} if "value" in want else {}
        if "value_loss" in want:
            assert isinstance(self.value_head, TwoHot)
            result["value_loss"] = self.value_head.loss(raw, batch["target"].reshape(raw.shape[:-1]))
        return result

    def update_normaliser(self, batch: Mapping[str, Tensor], valid: Tensor) -> None:
        """Merge ``obs/<key>`` [..., (K,) *shape] where ``valid`` bool [...]; of a stack the newest frame."""
        for key in sorted({*self.keys, *self.critic_keys}):
            normaliser = self.normaliser.of(key)
            if normaliser is None:
                continue
            x, own = batch[f"obs/{key}"], None
            if self.spec.frame_stack > 1:
                x = x.select(valid.ndim, -1)
            if self.padding is not None and key in self.padding.keys:
                own = self.padding.own(key, of_batch(batch))
            normaliser.merge(x, valid, own)

    def observed(
        self, obs: Mapping[str, np.ndarray], want: Iterable[str], device: torch.device
    ) -> dict[str, Tensor]:
        """The observations that acting needs; the critic's only if its value is wanted."""
        keys: Iterable[str] = self.reads
        if "value" in want and self.critic_keys:
            keys = {*keys, *self.critic_keys}
        found = {key: to_tensor(obs[key], device) for key in keys if key != CONDITION}
        return self.told(found)

    @property
    def reads(self) -> list[str]:
        """Observations without which it cannot act; the task says what of the others is padding."""
        return self.keys if self.padding is None or TASK in self.keys else [*self.keys, TASK]

    def told(self, obs: dict[str, Tensor], label: int = GOOD) -> dict[str, Tensor]:
        """``obs`` [..., ...] with ``label``, if it is told one and there is none; padding is blank."""
        if self.padding is not None:
            obs = self.padding.filled(obs, self.normaliser)
        if CONDITION not in self.keys or CONDITION in obs:
            return obs
        key = next(key for key in self.keys if key != CONDITION)
        lead = obs[key].shape[: obs[key].ndim - len(self._env.observation[key].shape)]
        value = torch.full(lead, label, dtype=torch.int64, device=obs[key].device)
        return {**obs, CONDITION: value}

    def flattened(self, obs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], torch.Size]:
        """The observations that are read, with leading dimensions made one, and these dimensions."""
        stacked, lead, flat = self.spec.frame_stack > 1, torch.Size(), {}
        for key in sorted({*self.keys, *self.critic_keys} & set(obs)):
            inner = len(self._env.observation[key].shape) + stacked
            lead = obs[key].shape[: obs[key].ndim - inner]
            flat[key] = obs[key].reshape(-1, *obs[key].shape[len(lead) :])
        return flat, lead

    def check_wanted(self, want: Iterable[str]) -> None:
        """Raise `SpecError` for what this policy does not give."""
        unknown = set(want) - self.wants
        if unknown:
            raise SpecError(f"wanted {sorted(unknown)}; this policy gives {', '.join(sorted(self.wants))}")

    def need_critic(self) -> None:
        """Raise `SpecError` if it was made without its critic."""
        if self.critic is None:
            raise SpecError("a value was asked of a policy that was made without its critic (critic=False)")


def rows_in(mode: Mode | list[Mode], name: Mode, num_rows: int) -> np.ndarray:
    """bool [B]: rows that ``mode``, one for all or one per row, puts into mode ``name``."""
    modes = [mode] * num_rows if isinstance(mode, str) else mode
    if len(modes) != num_rows:
        raise SpecError(f"{len(modes)} modes for {num_rows} rows")
    unknown = set(modes) - set(MODES)
    if unknown:
        raise SpecError(f"mode {unknown.pop()!r}; one of {', '.join(MODES)}")
    return np.array([each == name for each in modes])


def of_batch(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The observations of a learner's batch by their keys."""
    return {key[4:]: value for key, value in batch.items() if key.startswith("obs/")}


def to_array(tensor: Tensor, device: torch.device) -> np.ndarray:
    """``tensor``, which is on ``device``, in numpy."""
    return tensor.numpy() if device.type == "cpu" else tensor.cpu().numpy()
