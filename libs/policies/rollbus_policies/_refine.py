"""A small network behind a generative policy that changes what it decided (RLT, 2604.23073).

It sees one token that sums up what the policy's encoder sees, the numbers among the observations
(proprioception) and the policy's own decision, the reference. The stored action of such a policy is float32
[2 C A + 1]: the reference, what was decided in the end, and who decided (`NETWORK`, `POLICY`, `OTHERS`).
Symbols: B rows, C actions of one decision of which k are executed, A elements of an action, n positions of
width W, Z width of the token, S width of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_core import rng
from rollbus_policies._config import GenerativeConfig
from rollbus_policies._context import Expert, is_sequence
from rollbus_policies._generative import Generative, plain
from rollbus_policies._networks import OUTPUT_GAIN, Mlp, apply, linear
from rollbus_policies._observing import of_batch, rows_in
from rollbus_policies._transforms import VectorInput, is_image, to_tensor
from rollbus_policies.base import Ask
from rollbus_wire.spec import MAY_REFINE, EnvSpec

#: Who decided, in the last number of a stored action; others: an expert or a person.
NETWORK, POLICY, OTHERS = 1.0, 0.0, -1.0
#: What only refined policies give.
GIVES = frozenset({"refinement", "refinement_state", "reference", "token_loss"})
#: Stream of a row's random numbers that the network explores with.
_OF_NETWORK = 1 << 34


class Token(nn.Module):
    """One token [B, Z] from which all positions [B, n, W] of an encoder can be told."""

    def __init__(self, config: GenerativeConfig, num_positions: int) -> None:
        super().__init__()
        sizes = {"width": config.width, "num_heads": config.num_heads}
        self.encoder = Expert(0, 1, layers=1, **sizes)
        self.narrow = nn.Linear(config.width, config.refine_token)
        self.widen = nn.Linear(config.refine_token, config.width)
        self.decoder = Expert(0, num_positions, layers=1, **sizes)

    def forward(self, context: tuple[Tensor, Tensor]) -> Tensor:
        """[B, Z] of positions and which of them are there."""
        return self.narrow(self.encoder(context)[:, 0])

    def loss(self, context: tuple[Tensor, Tensor]) -> Tensor:
        """[B]: mean squared error over the positions that are there; no gradient reaches these."""
        positions, there = context[0].detach(), context[1]
        seen = self.widen(self((positions, there))).unsqueeze(1)
        told = self.decoder((seen, torch.ones_like(there[:, :1])))
        weight = there.to(positions.dtype)
        return (((told - positions) ** 2).mean(-1) * weight).sum(1) / weight.sum(1).clamp(min=1.0)


class Refine(nn.Module):
    """The executed actions [B, k, A] in [-1, 1] from a state [B, S] and the reference [B, k, A]."""

    acts: Tensor
    exploration: Tensor

    def __init__(
        self, config: GenerativeConfig, env: EnvSpec, keys: list[str], frame_stack: int, num_positions: int
    ) -> None:
        super().__init__()
        self.token = Token(config, num_positions)
        arrays = {key: env.observation[key] for key in keys}
        numbers = [key for key, array in arrays.items() if not (is_image(array) or is_sequence(array))]
        self._numbers = VectorInput(env, numbers, frame_stack) if numbers else None
        self._shape = (config.num_executed, env.action.size)
        num = self._shape[0] * self._shape[1]
        #: Width of the state.
        self.num_state = config.refine_token + (self._numbers.size if self._numbers else 0)
        self.actor = Mlp(self.num_state + num, config.refine_hidden, "relu", "orthogonal")
        self.output = linear(self.actor.size, num, "orthogonal", OUTPUT_GAIN)
        #: Whether it has a say yet: not before it is trained.
        self.register_buffer("acts", torch.zeros((), dtype=torch.bool))
        #: Deviation of the noise on what is sampled.
        self.register_buffer("exploration", torch.zeros(()))

    def state(self, context: tuple[Tensor, Tensor], obs: Mapping[str, Tensor], normalisers: Any) -> Tensor:
        """Token and proprioception, [B, S]."""
        token = self.token(context)
        if self._numbers is None:
            return token
        return torch.cat([token, self._numbers(obs, normalisers)], -1)

    def forward(self, state: Tensor, reference: Tensor) -> Tensor:
        hidden = self.actor(torch.cat([state, reference.flatten(-2)], -1))
        return torch.tanh(apply(self.output, hidden)).unflatten(-1, self._shape)

    def noise(self, seeds: np.ndarray, device: torch.device) -> Tensor:
        """What is added to the rows with these ``seeds`` where they explore, [B, k, A]."""
        streams = rng.step_seeds(seeds, np.full(len(seeds), _OF_NETWORK))
        drawn = to_tensor(rng.normal(streams, self._shape[0] * self._shape[1]), device)
        return self.exploration * drawn.unflatten(-1, self._shape)


class Refining(Generative):
    """Over a generative family: the last word is that of `Refine`."""

    def build_refinement(self, env: EnvSpec, frame_stack: int) -> None:
        """Add the network, and state what it changes."""
        config, num = self.config, self._shape[0] * self._shape[1]
        self.refine = Refine(config, env, self.keys, frame_stack, self.context.num_positions)
        self.wants = (self.wants - config.lacks().keys()) | GIVES
        self.spec.action, self.spec.noise = ("float32", (2 * num + 1,)), num

    def explore(self, amount: float) -> None:
        """Let the network act, with noise of this deviation in mode "sample"."""
        self.refine.acts.fill_(True)
        self.refine.exploration.fill_(amount)

    def refinement_state(self, context: Any, obs: Mapping[str, Tensor]) -> Tensor:
        """[B, S]."""
        return self.refine.state(plain(context), obs, self.normaliser)

    def reference(self, action: Tensor) -> Tensor:
        """The policy's own decision in stored ``action`` [..., 2 C A + 1], as far as it is executed."""
        num = self._shape[0] * self._shape[1]
        return self._executed(action[..., :num].unflatten(-1, self._shape))

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`."""
        self.check_wanted(want)
        rest, own = tuple(name for name in want if name not in GIVES), GIVES & {*want}
        result = super().forward(batch, rest) if rest else {}
        if "refinement" in own:
            result["refinement"] = self.refine(batch["refinement_state"], batch["reference"])
        if not own - {"refinement"}:
            return result
        obs, lead = self.flattened(self.told(of_batch(batch)))
        context, found = self._guided(obs), {}
        if "token_loss" in own:
            found["token_loss"] = self.refine.token.loss(plain(context))
        if "refinement_state" in own:
            found["refinement_state"] = self.refinement_state(context, obs)
        if "reference" in own:
            end = self.undisturbed(context, batch["noise"].reshape(-1, *self._shape))
            found["reference"] = self._executed(end)
        return result | {name: value.reshape(*lead, *value.shape[1:]) for name, value in found.items()}

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """What somebody else did is its own reference."""
        num = self._shape[0] * self._shape[1]
        end = super().from_env_action(action)[:, -1 - num : -1]
        return np.concatenate([end, end, np.full((len(end), 1), OTHERS, np.float32)], 1)

    def _decided(
        self, given: Mapping[str, np.ndarray], obs: Mapping[str, Tensor], context: Any, start: Tensor,
        ask: Ask, seeds: np.ndarray,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The reference and what is decided [B, 2, C, A], and who decided; random rows are the policy's."""
        end, rows = self.undisturbed(context, start), len(seeds)
        sampled, random = (
            torch.from_numpy(rows_in(ask.mode, name, rows)).to(end.device) for name in ("sample", "random")
        )
        reference = self._executed(end)
        refined = self.refine(self.refinement_state(context, obs), reference)
        noise = self.refine.noise(seeds, end.device) * sampled.view(-1, 1, 1)
        refined = (refined + noise).clamp(-1.0, 1.0)
        acts = ~random & self.refine.acts
        if MAY_REFINE in given:
            acts = acts & (to_tensor(given[MAY_REFINE], end.device).reshape(rows, -1)[:, -1] > 0.5)
        whole = torch.where(acts.view(-1, 1, 1), self._in_place(end, refined), end)
        return torch.stack([end, whole], 1), torch.where(acts, NETWORK, POLICY)

    def _ended(self, obs: Mapping[str, Tensor], context: Any, noise: Tensor) -> Tensor:
        end = super()._ended(obs, context, noise)
        refined = self.refine(self.refinement_state(context, obs), self._executed(end))
        return torch.where(self.refine.acts, self._in_place(end, refined), end)

    def _executed(self, end: Tensor) -> Tensor:
        """[..., k, A] in [-1, 1] of what a chain ended in, [..., C, A]."""
        return self.ends.to_unit(end)[..., : self.spec.execute, :]

    def _in_place(self, end: Tensor, executed: Tensor) -> Tensor:
        """``end`` [B, C, A] with ``executed`` [B, k, A] in [-1, 1] in place of its first actions."""
        return torch.cat([self.ends.from_unit(executed), end[:, self.spec.execute :]], 1)
