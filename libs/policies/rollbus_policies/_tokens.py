"""The torch side of `tokens`.

Symbols: B rows, P tokens of a prompt, L of a completion, V different tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_accel.kernels.token_logprob import token_logprob
from rollbus_core import rng
from rollbus_policies import tokens
from rollbus_policies._causal import Causal
from rollbus_policies._heads import first_to_finish, race
from rollbus_policies._transforms import group_keys, to_tensor
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

PAD = 0
_WANTS = frozenset({"log_prob", "token_log_prob", "entropy", "value", "cloning_loss", "features"})


class TokenPolicy(nn.Module):
    """Completes prompts; log-probabilities count the tokens up to the end token."""

    #: Tokens are not normalised.
    normaliser = None

    def __init__(self, config: tokens.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__()
        self.key, self.vocabulary = _prompt(spec, frame_stack)
        action = spec.action
        self.longest, self.end_token = action.size, action.end_token
        self.spec = PolicySpec(
            action=("int64", action.shape),
            extras={
                "log_prob": ("float32", ()), "entropy": ("float32", ()),
                "token_log_prob": ("float32", (self.longest,)),
            },
        )  # fmt: skip
        prompt = spec.observation[self.key].size
        #: The token behind the prompt, which no prompt or completion has.
        self._begin = self.vocabulary
        self.body = Causal(
            self.vocabulary + 1, prompt + self.longest, config.width, config.depth, config.heads
        )
        self.output = nn.Linear(config.width, self.vocabulary)
        self.critic: nn.Module | None = None
        if critic:
            self.critic = nn.Linear(config.width, 1)
            self.spec.extras["value"] = ("float32", ())

    # --- acting ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        """Complete B prompts; see `rollbus_policies.base.Policy.act`."""
        device = self.output.weight.device
        noise = to_tensor(self._noise(ask.mode, seeds), device)
        ids = self._prompted(to_tensor(obs[self.key], device))
        features, kept = self.body(ids, ids != PAD)
        first = features[:, -1]
        completion = torch.full((len(ids), self.longest), PAD, dtype=torch.int64, device=device)
        token_log_prob = torch.zeros(completion.shape, device=device)
        entropy = torch.zeros(len(ids), device=device)
        going, visible = torch.ones(len(ids), dtype=torch.bool, device=device), ids != PAD
        for place in range(self.longest):
            log_probs = torch.log_softmax(self.output(features[:, -1]).float(), -1)
            drawn = first_to_finish(log_probs, noise[:, place])
            completion[:, place] = torch.where(going, drawn, PAD)
            chosen = log_probs.gather(-1, drawn[:, None])[:, 0]
            token_log_prob[:, place] = torch.where(going, chosen, 0.0)
            entropy += torch.where(going, -(log_probs.exp() * log_probs).sum(-1), 0.0)
            going = going & (drawn != self.end_token)
            if place + 1 == self.longest or not going.any():
                break
            visible = torch.cat([visible, torch.ones_like(going)[:, None]], 1)
            features, kept = self.body(drawn[:, None], visible, kept)
        found = {"token_log_prob": token_log_prob, "log_prob": token_log_prob.sum(1), "entropy": entropy}
        if self.critic is not None and "value" in ask.want:
            found["value"] = self.critic(first)[:, 0]
        action = completion.numpy(force=True)
        return Act(
            env_action=action,
            action=action,
            extras={name: self._asked(found, name).numpy(force=True) for name in ask.want},
        )

    def _asked(self, found: Mapping[str, Tensor], name: str) -> Tensor:
        if name not in found:
            raise SpecError(f"act was asked for {name!r}; it gives {', '.join(sorted(found))}")
        return found[name]

    def _noise(self, mode: Any, seeds: np.ndarray) -> np.ndarray:
        """Float32 [B, L, V] for `first_to_finish`: equal clocks give the mode."""
        shape = (len(seeds), self.longest, self.vocabulary)
        noise = race(rng.uniform(seeds, self.longest * self.vocabulary)).reshape(shape)
        modes = [mode] * len(seeds) if isinstance(mode, str) else list(mode)
        if len(modes) != len(seeds) or not set(modes) <= {"sample", "mode", "random"}:
            raise SpecError(f"modes {sorted(set(modes))} for {len(seeds)} rows; sample, mode or random")
        noise[[each == "mode" for each in modes]] = -1.0
        return noise

    # --- scoring ---------------------------------------------------------------------------------

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`.

        "token_log_prob" also gives "token_mask" bool [..., L]: the tokens up to the end token.
        """
        if unknown := set(want) - _WANTS:
            raise SpecError(f"wanted {sorted(unknown)}; this policy gives {', '.join(sorted(_WANTS))}")
        prompt = batch[f"obs/{self.key}"]
        lead = prompt.shape[:-1]
        ids = self._prompted(prompt.reshape(-1, prompt.shape[-1]))
        scores = bool(set(want) - {"value", "features"})
        action = batch["action"].reshape(-1, self.longest) if scores else ids[:, :0]
        ids = torch.cat([ids, action[:, :-1]], 1)
        visible = ids != PAD
        visible[:, prompt.shape[-1] :] = True
        features, _ = self.body(ids, visible)
        first = features[:, prompt.shape[-1]]
        result = self._scored(features[:, prompt.shape[-1] :], action) if scores else {}
        if "value" in want:
            if self.critic is None:
                raise SpecError("a value was asked of a policy that was made without its critic")
            result["value"] = self.critic(first)[:, 0].float()
        result["features"] = first
        asked = [*want, *(["token_mask"] if "token_log_prob" in want else [])]
        return {name: result[name].reshape(*lead, *result[name].shape[1:]) for name in asked}

    def _scored(self, features: Tensor, action: Tensor) -> dict[str, Tensor]:
        mask = self.token_mask(action)
        flat = self.output(features).reshape(-1, self.vocabulary)
        log_prob, entropy = token_logprob(flat, action.reshape(-1), mask=mask.reshape(-1))
        per_token = log_prob.reshape(action.shape)
        total = per_token.sum(1)
        return {
            "token_log_prob": per_token, "token_mask": mask, "log_prob": total, "cloning_loss": -total,
            "entropy": entropy.reshape(action.shape).sum(1),
        }  # fmt: skip

    def token_mask(self, action: Tensor) -> Tensor:
        """Bool [..., L]: the tokens of ``action`` int64 [..., L] up to its first end token."""
        ended = (action == self.end_token).cumsum(-1)
        return (ended - (action == self.end_token).long()) == 0

    def _prompted(self, prompt: Tensor) -> Tensor:
        return torch.cat([prompt, prompt.new_full((len(prompt), 1), self._begin)], 1)

    # --- the rest of the contract ------------------------------------------------------------------

    def squash(self, action: Tensor) -> Tensor:
        """Raises `SpecError`: tokens have no [-1, 1] units."""
        raise SpecError("the tokens policy acts with tokens, which have no [-1, 1] units")

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment executes: the completion itself."""
        return action

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """The stored action of an executed one."""
        return action

    def update_normaliser(self, batch: Mapping[str, Tensor], valid: Tensor) -> None:
        """There is none."""


def _prompt(spec: EnvSpec, frame_stack: int) -> tuple[str, int]:
    """The key of the prompt and the number of different tokens. Raises `SpecError` for other tasks."""
    keys, action = group_keys(spec, "policy"), spec.action
    array = spec.observation[keys[0]]
    if len(keys) != 1 or array.layout != "tokens" or len(array.shape) != 1 or action.layout != "tokens":
        raise SpecError(
            f"{spec.name}: the tokens policy needs one observation [P] and an action, both of layout tokens; "
            "use policy.name: mlp"
        )
    if frame_stack > 1:
        raise SpecError("env.frame_stack stacks frames, a prompt is none; set env.frame_stack: 1")
    if len(set(action.num)) != 1 or array.high is None or not 0 <= action.end_token < action.num[0]:
        raise SpecError(
            f"{spec.name}: a completion needs one vocabulary and an end token in it, not "
            f"{action.num}, {action.end_token}"
        )
    return keys[0], max(action.num[0], math.floor(array.high) + 1)
