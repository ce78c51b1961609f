"""The torch side of `tokens`.

Symbols: B rows, P tokens of a prompt, L of a completion, V different tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_accel.kernels.token_logprob import token_logprob
from rollbus_policies import tokens
from rollbus_policies._causal import Causal
from rollbus_policies._decoding import PAD, Decoder
from rollbus_policies._transforms import group_keys
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

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
            decoding_steps=self.longest,
        )  # fmt: skip
        self.prompt = spec.observation[self.key].size
        #: The token behind the prompt, which no prompt or completion has.
        self._begin = self.vocabulary
        self.body = Causal(
            self.vocabulary + 1, self.prompt + self.longest, config.width, config.depth, config.heads
        )
        self.output = nn.Linear(config.width, self.vocabulary)
        self.critic: nn.Module | None = None
        if critic:
            self.critic = nn.Linear(config.width, 1)
            self.spec.extras["value"] = ("float32", ())

    # --- acting ----------------------------------------------------------------------------------

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        """Complete B prompts; see `rollbus_policies.base.Policy.act`."""
        decoder = Decoder(self, ask.want)
        decoder.admit(obs, ask.mode, seeds)
        return decoder.finish()

    def decoder(self, want: tuple[str, ...]) -> Decoder:
        """See `rollbus_policies.base.PolicySpec.decoding_steps`."""
        return Decoder(self, want)

    def first_value(self, features: Tensor) -> Tensor:
        """The critic's value [B] of ``features`` [B, W] behind the prompt."""
        if self.critic is None:
            raise SpecError("a value was asked of a policy that was made without its critic")
        value: Tensor = self.critic(features)[:, 0].float()
        return value

    # --- scoring ---------------------------------------------------------------------------------

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`.

        "token_log_prob" also gives "token_mask" bool [..., L]: the tokens up to the end token.
        """
        if unknown := set(want) - _WANTS:
            raise SpecError(f"wanted {sorted(unknown)}; this policy gives {', '.join(sorted(_WANTS))}")
        prompt = batch[f"obs/{self.key}"]
        lead = prompt.shape[:-1]
        ids = self.prompted(prompt.reshape(-1, prompt.shape[-1]))
        scores = bool(set(want) - {"value", "features"})
        action = batch["action"].reshape(-1, self.longest) if scores else ids[:, :0]
        ids = torch.cat([ids, action[:, :-1]], 1)
        visible = ids != PAD
        visible[:, prompt.shape[-1] :] = True
        features = self.body(ids, visible)
        first = features[:, prompt.shape[-1]]
        result = self._scored(features[:, prompt.shape[-1] :], action) if scores else {}
        if "value" in want:
            result["value"] = self.first_value(first)
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

    def prompted(self, prompt: Tensor) -> Tensor:
        """int64 [B, P + 1]: ``prompt`` and the token with which a completion begins."""
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
