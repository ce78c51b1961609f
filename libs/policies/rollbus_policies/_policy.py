"""What all actor-critic families share: acting, scoring, values, normaliser statistics.

`act` and `forward` run the same operations on the same modules, so that log-probabilities agree to
the last bit at equal batch shape. A family gives `encode`, its features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._config import ActorCriticConfig
from rollbus_policies._heads import Head, make_head
from rollbus_policies._networks import OUTPUT_GAIN, apply, exact, linear
from rollbus_policies._normaliser import Normalisers
from rollbus_policies._samplers import Sampler
from rollbus_policies._transforms import group_keys, is_vector, to_tensor, trunk_input
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_policies.trunk import Trunk, TrunkInput
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

_MODES = ("sample", "mode", "random")
_WANTS = frozenset({"log_prob", "entropy", "value", "sample", "features"})


class ActorCritic(nn.Module):
    """Encoder, action head and optional critic.

    Everything of the critic lies under ``critic.``; actors that record no values have no such tensors.
    """

    def __init__(self, config: ActorCriticConfig, env: EnvSpec, frame_stack: int) -> None:
        super().__init__()
        self.config = config
        self.head = make_head(config.head, env.action, config.log_std_init)
        self.spec = PolicySpec(
            action=self.head.action,
            extras={"log_prob": ("float32", ()), "entropy": ("float32", ())},
            frame_stack=frame_stack,
        )
        self.keys = group_keys(env, "policy")
        self.critic_keys = group_keys(env, config.critic_group) if config.critic == "own" else []
        self.normaliser = Normalisers()
        if config.normalise_obs:
            for key in sorted({*self.keys, *self.critic_keys}):
                if is_vector(env.observation[key]):
                    self.normaliser.add(key, env.observation[key].shape)
        self.critic: nn.Module | None = None
        self._env = env

    def build_output(self, num_features: int) -> None:
        """Add the layer from features to the head."""
        self.output = linear(num_features, self.head.num_params, self.config.init, OUTPUT_GAIN)
        with torch.no_grad():
            self.output.bias.add_(self.head.initial_bias())

    def build_critic(self, critic: nn.Module) -> None:
        """Add the value function."""
        self.critic = critic
        self.spec.extras["value"] = ("float32", ())

    # --- what a family gives -----------------------------------------------------------------

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(features [..., F], next state).

        Acting: obs [B, ...], state [B, S], start None. Learning: leading dimensions of the batch;
        for families with state these are [T, n], state is [n, S] and start bool [T, n].
        """
        raise NotImplementedError

    def value(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """V [...]; only called with a critic."""
        raise NotImplementedError

    def describe_features(self, trunk: Trunk, obs: Mapping[str, str], state: str) -> tuple[str, str]:
        """`encode` of one decision as operations of ``trunk``; a state is "" where there is none."""
        raise NotImplementedError

    def describe_value(self, trunk: Trunk, obs: Mapping[str, str], features: str) -> str:
        """`value` as operations of ``trunk``."""
        raise NotImplementedError

    # --- the contract --------------------------------------------------------------------------

    def squash(self, action: Tensor) -> Tensor:
        """Stored actions in [-1, 1] units, as `QEnsemble` takes them."""
        return self.head.squash(action)

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment executes for stored ``action`` [B, ...]."""
        return self.head.env_action(action)

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """The stored action of an executed one (demonstrations, other people's data); finite."""
        return self.head.from_env_action(action)

    @torch.inference_mode()
    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        """Decide for B rows; see `rollbus_policies.base.Policy.act`."""
        head, output = self.head, self.output
        device = output.weight.device
        wants_value = "value" in ask.want
        keys = self.keys if not (wants_value and self.critic_keys) else {*self.keys, *self.critic_keys}
        tensors = {key: to_tensor(obs[key], device) for key in keys}
        before = to_tensor(self._checked_state(state, len(seeds)), device) if self.spec.state_size else None
        features, after = self.encode(tensors, before, None)
        params = head(apply(output, features))
        action = self._decide(params, ask.mode, seeds, device)
        extras = {
            name: _to_array(self._extra(name, params, action, tensors, features), device) for name in ask.want
        }
        stored = _to_array(action, device)
        return Act(
            env_action=head.env_action(stored),
            action=stored,
            state=None if after is None else _to_array(after, device),
            extras=extras,
        )

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`.

        "sample" also gives "sample_log_prob" and "squashed", the sample in [-1, 1] units.
        """
        unknown = set(want) - _WANTS
        if unknown:
            raise SpecError(f"wanted {sorted(unknown)}; a policy gives {', '.join(sorted(_WANTS))}")
        obs = {key[4:]: value for key, value in batch.items() if key.startswith("obs/")}
        features, _ = self._encoded(obs, batch.get("state"), batch.get("start"))
        result = {}
        if set(want) - {"value", "features"}:
            params = self.head(exact(self.output, features))
            if "log_prob" in want:
                result["log_prob"] = self.head.log_prob(params, batch["action"])
            if "entropy" in want:
                result["entropy"] = self.head.entropy(params)
            if "sample" in want:
                result |= self._sample(params, batch["noise"])
        if "value" in want:
            self._need_critic()
            result["value"] = self.value(obs, features)
        if "features" in want:
            result["features"] = features
        return result

    # --- acting outside of `act`, for engines -----------------------------------------------------

    def describe(self, value: bool) -> Trunk:
        """Everything deterministic of `act` as data, with the critic's value if ``value``."""
        if value:
            self._need_critic()
        trunk = Trunk(self.state_dict(keep_vars=True))
        keys = {*self.keys, *(self.critic_keys if value else [])}
        obs = {
            key: trunk.input(f"obs/{key}", trunk_input(self._env.observation[key], self.spec.frame_stack))
            for key in sorted(keys)
        }
        size = self.spec.state_size
        state = trunk.input("state", TrunkInput("float32", (size,))) if size else ""
        features, after = self.describe_features(trunk, obs, state)
        trunk.outputs["params"] = trunk.add("linear", features, self.output.weight, self.output.bias)
        if value:
            trunk.outputs["value"] = self.describe_value(trunk, obs, features)
        if after:
            trunk.outputs["state"] = after
        return trunk

    def infer(self, inputs: Mapping[str, Tensor], value: bool) -> dict[str, Tensor]:
        """What `describe` describes: "params", "value", "state" of inputs "obs/<key>" and "state"."""
        obs = {key[4:]: tensor for key, tensor in inputs.items() if key.startswith("obs/")}
        features, after = self.encode(obs, inputs.get("state"), None)
        result = {"params": apply(self.output, features)}
        if value:
            self._need_critic()
            result["value"] = self.value(obs, features)
        if after is not None:
            result["state"] = after
        return result

    def sampler(self) -> Sampler:
        """Decides from "params" in numpy; gives "log_prob" and "entropy"."""
        return self.head.sampler()

    def update_normaliser(self, batch: Mapping[str, Tensor], valid: Tensor) -> None:
        """Merge ``obs/<key>`` [..., (K,) *shape] where ``valid`` bool [...]; of a stack the newest frame."""
        for key in sorted({*self.keys, *self.critic_keys}):
            normaliser = self.normaliser.of(key)
            if normaliser is None:
                continue
            x = batch[f"obs/{key}"]
            if self.spec.frame_stack > 1:
                x = x.select(valid.ndim, -1)
            normaliser.merge(x, valid)

    def _encoded(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if not (self.config.recompute and torch.is_grad_enabled()):
            return self.encode(obs, state, start)
        from torch.utils.checkpoint import checkpoint

        encoded: tuple[Tensor, Tensor | None] = checkpoint(
            self.encode, obs, state, start, use_reentrant=False, preserve_rng_state=False
        )
        return encoded

    # --- details -------------------------------------------------------------------------------

    def _sample(self, params: Any, noise: Tensor) -> dict[str, Tensor]:
        if not self.head.reparameterised:
            raise SpecError(
                f"{type(self.head).__name__} gives no reparameterised sample; set policy.head: tanh_gaussian"
            )
        sample = self.head.sample(params, noise)
        return {
            "sample": sample,
            "sample_log_prob": self.head.log_prob(params, sample),
            "squashed": self.head.squash(sample),
        }

    def _decide(self, params: Any, mode: Any, seeds: np.ndarray, device: torch.device) -> Tensor:
        if isinstance(mode, str):
            return _decide_all(self.head, params, mode, seeds, device)
        if len(mode) != len(seeds):
            raise SpecError(f"{len(mode)} modes for {len(seeds)} rows")
        modes = sorted(set(mode))
        action = _decide_all(self.head, params, modes[0], seeds, device)
        for other in modes[1:]:
            rows = torch.tensor([m == other for m in mode], device=device)
            rows = rows.reshape(-1, *[1] * (action.ndim - 1))
            action = torch.where(rows, _decide_all(self.head, params, other, seeds, device), action)
        return action

    def _extra(
        self, name: str, params: Any, action: Tensor, obs: Mapping[str, Tensor], features: Tensor
    ) -> Tensor:
        if name == "log_prob":
            return self.head.log_prob(params, action)
        if name == "value":
            self._need_critic()
            return self.value(obs, features)
        if name == "entropy":
            return self.head.entropy(params)
        raise SpecError(f"act was asked for {name!r}; it gives {', '.join(sorted(self.spec.extras))}")

    def _need_critic(self) -> None:
        if self.critic is None:
            raise SpecError("a value was asked of a policy that was made without its critic (critic=False)")

    def _checked_state(self, state: np.ndarray | None, num_rows: int) -> np.ndarray:
        if state is None or state.shape != (num_rows, self.spec.state_size):
            came = "none" if state is None else list(state.shape)
            raise SpecError(f"recurrent state must be [{num_rows}, {self.spec.state_size}], came {came}")
        return state


def _decide_all(head: Head, params: Any, mode: str, seeds: np.ndarray, device: torch.device) -> Tensor:
    if mode == "sample":
        return head.sample(params, to_tensor(head.noise(seeds), device))
    if mode == "mode":
        return head.mode(params)
    if mode == "random":
        return to_tensor(head.random(seeds), device)
    raise SpecError(f"mode {mode!r}; one of {', '.join(_MODES)}")


def _to_array(tensor: Tensor, device: torch.device) -> np.ndarray:
    return tensor.numpy() if device.type == "cpu" else tensor.cpu().numpy()
