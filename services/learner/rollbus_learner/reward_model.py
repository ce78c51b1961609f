"""A learned reward: what a model of `rollbus_learner.reward_models` says of observations, phi in [0, 1].

``form`` says how that becomes a reward of each decision, from o to o' in n environment steps:

shaping  ``g^n phi(o') - phi(o)``, phi of what is after a termination 0 (Ng, Harada and Russell, 1999): over
         an episode it adds up to what its ends are worth, so it changes no best policy
each     ``phi(o')``
end      ``phi(o')`` where the episode ends, by termination or time limit, else 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rollbus_core import model_folders
from rollbus_core.model_folders import REWARD
from rollbus_learner.following import after
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.spec import ArraySpec, EnvSpec

if TYPE_CHECKING:
    from rollbus_learner.algorithm import Batch

MODELS = "rollbus_learner.reward_models"
#: Observations of one forward pass.
PART = 4096


class ModelReward:
    """The reward model in ``folder`` on ``device``, of environments that observe ``spec``."""

    def __init__(
        self, folder: Path, spec: EnvSpec, *, form: str, gamma: float | None, device: Any, where: str
    ) -> None:
        """``form`` "auto": that of its kind; ``gamma`` None: there is no discount. Raises `ConfigError`."""
        card = model_folders.read_card(folder, REWARD)
        plugin = lookup.find(MODELS, card["by"])
        self.form = plugin.FORM if form == "auto" else form
        if self.form == "shaping" and gamma is None:
            raise ConfigError(
                f"{where}: {folder} has form shaping, which needs a discount, and this algorithm has none "
                "(it compares whole episodes, to which shaping adds nothing); set form: end or each"
            )
        self._gamma = 1.0 if gamma is None else gamma
        learned = EnvSpec.from_data(card["spec"])
        self.module = plugin.build(plugin.Config(**card["settings"]), learned)
        _check_fit(folder, learned, self.module.keys, spec, where)
        tensors = model_folders.read_tensors(folder, REWARD)
        self.module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
        self.module.to(device).eval().requires_grad_(False)
        self._device, self._spec = device, learned

    @property
    def over_several(self) -> bool:
        """Whether it can be asked about a stretch of decisions: shaping adds up exactly."""
        return self.form == "shaping"

    @torch.no_grad()
    def of(self, batch: Batch) -> Tensor:
        """float32 [...], one number per decision."""
        before, following = self._potentials(batch)
        return _FORMS[self.form](before, following, batch, self._gamma)

    def _potentials(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """phi before and after each decision, [...]."""
        lead = batch["valid"].dim()
        if f"next_obs/{self.module.keys[0]}" in batch:
            return self._phi(batch, "obs/", lead), self._phi(batch, "next_obs/", lead)
        found = self._phi(batch, "obs/", lead)
        return found[:-1], after(found, partial(self._phi, batch, "final_obs/", 1), batch)

    def _phi(self, batch: Batch, prefix: str, lead: int) -> Tensor:
        """phi of ``prefix`` observations with ``lead`` leading dimensions; of stacked frames the newest."""
        flat, shape = {}, torch.Size()
        for key in self.module.keys:
            column, array = batch[prefix + key].to(self._device), self._spec.observation[key]
            if column.dim() > lead + len(array.shape):
                column = column.select(lead, -1)
            shape = column.shape[:lead]
            flat[key] = column.reshape(-1, *array.shape)
        num = shape.numel()
        parts = [
            self.module({key: column[begin : begin + PART] for key, column in flat.items()})
            for begin in range(0, num, PART)
        ]
        return torch.cat(parts).reshape(shape)


def _shaping(before: Tensor, following: Tensor, batch: Batch, gamma: float) -> Tensor:
    num = batch.get("n_step_num", batch["num_steps"]).to(before)
    goes_on = (~batch["terminated"]).to(before)
    return gamma**num * goes_on * following - before


def _each(before: Tensor, following: Tensor, batch: Batch, gamma: float) -> Tensor:
    return following


def _end(before: Tensor, following: Tensor, batch: Batch, gamma: float) -> Tensor:
    return following * (batch["terminated"] | batch["truncated"]).to(before)


_FORMS: Mapping[str, Callable[[Tensor, Tensor, Batch, float], Tensor]] = {
    "shaping": _shaping, "each": _each, "end": _end,
}  # fmt: skip


def _check_fit(folder: Path, learned: EnvSpec, keys: tuple[str, ...], spec: EnvSpec, where: str) -> None:
    problems = []
    for key in keys:
        wanted, have = learned.observation[key], spec.observation.get(key)
        if have is None:
            problems.append(f"{key!r}, which is not observed (but {', '.join(spec.observation)})")
        elif (wanted.dtype, wanted.shape) != (have.dtype, have.shape):
            problems.append(f"{key!r} as {_said(wanted)}, which is {_said(have)} here")
    if problems:
        raise ConfigError(
            f"{where}: the reward model {folder} was learned from {learned.name} and does not fit "
            f"{spec.name}: it reads {'; '.join(problems)}"
        )


def _said(array: ArraySpec) -> str:
    return f"{array.dtype} {list(array.shape)}"
