"""What all actor-critic families share: acting, scoring, values, normaliser statistics.

`act` and `forward` run the same operations on the same modules, so that log-probabilities agree to
the last bit at equal batch shape. A family gives `encode`, its features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rollbus_policies._condition import CONDITION
from rollbus_policies._config import ActorCriticConfig
from rollbus_policies._executed import executed
from rollbus_policies._heads import ChunkHead, make_head
from rollbus_policies._networks import OUTPUT_GAIN, apply, exact, linear
from rollbus_policies._observing import MODES, VALUES, Observing, of_batch, rows_in, to_array
from rollbus_policies._samplers import Sampler
from rollbus_policies._transforms import to_tensor, trunk_input
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_policies.trunk import Trunk, TrunkInput
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

_UNTOLD = "it is told a label (policy.condition)"


class ActorCritic(Observing):
    """Encoder, action head and optional critic."""

    wants = frozenset({"log_prob", "entropy", "value", "sample", "features", "cloning_loss"})
    masks_padding = True

    def __init__(self, config: ActorCriticConfig, env: EnvSpec, frame_stack: int) -> None:
        super().__init__(config, env, frame_stack)
        self.head = make_head(
            config.head, env.action, config.log_std_init, num_bins=config.num_bins, chunk=config.chunk,
            execute=config.num_executed, masked=self.padding is not None,
        )  # fmt: skip
        per_action = () if config.chunk == 1 else (config.num_executed,)
        extras: dict[str, tuple[str, tuple[int, ...]]] = {
            "log_prob": ("float32", per_action), "entropy": ("float32", ()),
        }  # fmt: skip
        self.wants = self.wants | self.head.gives
        self.spec = PolicySpec(
            action=self.head.action,
            extras=extras if self.head.has_density else {},
            frame_stack=frame_stack,
            chunk=config.chunk,
            execute=config.num_executed,
            action_size=env.action.size,
            noise=self.head.num_noise,
            held_noise=config.sde_sample_freq if self.head.reads_features else None,
            no_trunk=self.head.no_sampler or _UNTOLD * (CONDITION in self.keys),
        )

    def build_output(self, num_features: int) -> None:
        """Add the layer from features to the head."""
        self.head.read(num_features)
        self.output = linear(num_features, self.head.num_params, self.config.init, OUTPUT_GAIN)
        with torch.no_grad():
            self.output.bias.add_(self.head.initial_bias())

    # --- what a family gives -----------------------------------------------------------------

    def encode(
        self, obs: Mapping[str, Tensor], state: Tensor | None, start: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(features [..., F], next state).

        Acting: obs [B, ...], state [B, S], start None. Learning: leading dimensions of the batch;
        for families with state these are [T, n], state is [n, S] and start bool [T, n].
        """
        raise NotImplementedError

    def raw(self, features: Tensor, layer: Callable[[nn.Module, Tensor], Tensor]) -> Tensor:
        """What the head takes, [..., head.num_params]; ``layer`` applies a linear layer."""
        return layer(self.output, features)

    def critic_output(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """What `value_head` takes, [..., K]; only called with a critic."""
        raise NotImplementedError

    def describe_features(self, trunk: Trunk, obs: Mapping[str, str], state: str) -> tuple[str, str]:
        """`encode` of one decision as operations of ``trunk``; a state is "" where there is none."""
        raise NotImplementedError

    def describe_critic(self, trunk: Trunk, obs: Mapping[str, str], features: str) -> str:
        """`critic_output` as operations of ``trunk``."""
        raise NotImplementedError

    # --- the contract --------------------------------------------------------------------------

    def squash(self, action: Tensor) -> Tensor:
        """Stored actions in [-1, 1] units, as `QEnsemble` takes them."""
        return self.head.squash(action)

    def explore(self, amount: float) -> None:
        """Set how much is explored, for heads that do not learn it."""
        self.head.explore(amount)

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
        head, device = self.head, self.output.weight.device
        tensors = self.observed(obs, ask.want, device)
        before = to_tensor(self._checked_state(state, len(seeds)), device) if self.spec.state_size else None
        features, after = self.encode(tensors, before, None)
        params = self._params(tensors, features, apply)
        action = self._decide(params, features, ask, seeds)
        extras = {
            name: to_array(self._extra(name, params, action, tensors, features), device) for name in ask.want
        }
        stored = to_array(action, device)
        return Act(
            env_action=head.env_action(stored),
            action=stored,
            state=None if after is None else to_array(after, device),
            extras=extras,
        )

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`.

        "sample" also gives "sample_log_prob" and "squashed", the sample in [-1, 1] units.
        """
        self.check_wanted(want)
        obs = self.told(of_batch(batch))
        features, _ = self._encoded(obs, batch.get("state"), batch.get("start"))
        result: dict[str, Tensor] = {}
        if set(want) - VALUES - {"features"}:
            result = self._of_head(self._params(obs, features, exact), batch, want)
        if VALUES & set(want):
            self.need_critic()
            result |= self.valued(self.critic_output(obs, features), batch, want)
        if "features" in want:
            result["features"] = features
        return result

    def _of_head(self, params: Any, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        head, result = self.head, {}
        num_steps = batch.get("num_steps")
        if "log_prob" in want:
            log_prob = self._of_actions(head.log_prob, head.log_probs)(params, batch["action"])
            result["log_prob"] = self._executed(log_prob, num_steps)
        if "entropy" in want:
            entropy = self._of_actions(head.entropy, head.entropies)(params)
            result["entropy"] = self._executed(entropy, num_steps)
        if "sample" in want:
            result |= self._sample(params, batch["noise"])
        if "cloning_loss" in want:
            result["cloning_loss"] = self._cloning_loss(params, batch)
        return result | {name: head.give(name, params) for name in head.gives & set(want)}

    def _of_actions(self, total: Any, each: Any) -> Any:
        """``total`` where a decision is one action, ``each`` where it holds several."""
        return total if self.spec.chunk == 1 else each

    def _executed(self, value: Tensor, num_steps: Tensor | None) -> Tensor:
        return value if self.spec.chunk == 1 else executed(value, num_steps)

    def _cloning_loss(self, params: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Negative log-likelihood [...] of demonstrated actions, in nats per action."""
        action = batch["action"]
        lead = action.shape[: action.ndim - len(self._env.action.shape) - (self.spec.chunk > 1)]
        shown = action.detach().reshape(-1, *action.shape[len(lead) :]).cpu().numpy()
        stored = torch.from_numpy(self.from_env_action(shown)).to(action.device).unflatten(0, lead)
        if isinstance(self.head, ChunkHead):
            return self.head.cloning_loss(params, stored, batch.get("action_valid"))
        return -self.head.log_prob(params, stored)

    def deployed(
        self, obs: Mapping[str, Tensor], state: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(what is executed for rows ``obs`` [B, ...] in mode "mode", state), in torch alone."""
        told = self.told(dict(obs))
        features, after = self.encode(told, state, None)
        return self.head.executed(self.head.mode(self._params(told, features, exact))), after

    # --- acting outside of `act`, for engines -----------------------------------------------------

    def describe(self, value: bool) -> Trunk:
        """Everything deterministic of `act` as data, with the critic's value if ``value``."""
        if value:
            self.need_critic()
        if CONDITION in self.keys or self.padding is not None:
            raise SpecError(self.spec.no_trunk)
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
            raw = self.describe_critic(trunk, obs, features)
            trunk.outputs["value"] = self.value_head.describe(trunk, raw)
        if after:
            trunk.outputs["state"] = after
        return trunk

    def infer(self, inputs: Mapping[str, Tensor], value: bool) -> dict[str, Tensor]:
        """What `describe` describes: "params", "value", "state" of inputs "obs/<key>" and "state"."""
        obs = {key[4:]: tensor for key, tensor in inputs.items() if key.startswith("obs/")}
        features, after = self.encode(obs, inputs.get("state"), None)
        result = {"params": self.raw(features, apply)}
        if value:
            result["value"] = self._value(obs, features)
        if after is not None:
            result["state"] = after
        return result

    def sampler(self) -> Sampler:
        """Decides from "params" in numpy; gives "log_prob" and "entropy"."""
        return self.head.sampler()

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

    def _params(
        self, obs: Mapping[str, Tensor], features: Tensor, layer: Callable[[nn.Module, Tensor], Tensor]
    ) -> Any:
        given = [features] if self.head.reads_features else []
        if self.padding is not None:
            given.append(self.padding.own_outputs(obs, self.spec.chunk))
        return self.head(self.raw(features, layer), *given)

    def _value(self, obs: Mapping[str, Tensor], features: Tensor) -> Tensor:
        self.need_critic()
        return self.value_head(self.critic_output(obs, features))

    def _sample(self, params: Any, noise: Tensor) -> dict[str, Tensor]:
        if not self.head.reparameterised:
            raise SpecError(
                f"{type(self.head).__name__} gives no reparameterised sample; set policy.head: tanh_gaussian"
            )
        sample = self.head.sample(params, noise)
        return {
            "sample": sample,
            "sample_log_prob": self._executed(
                self._of_actions(self.head.log_prob, self.head.log_probs)(params, sample), None
            ),
            "squashed": self.head.squash(sample),
        }

    def _decide(self, params: Any, features: Tensor, ask: Ask, seeds: np.ndarray) -> Tensor:
        if isinstance(ask.mode, str):
            return self._decide_all(params, features, ask.mode, ask, seeds)
        action: Tensor | None = None
        for mode in sorted(set(ask.mode)):
            rows = torch.from_numpy(rows_in(ask.mode, mode, len(seeds))).to(features.device)
            decided = self._decide_all(params, features, mode, ask, seeds)
            rows = rows.reshape(-1, *[1] * (decided.ndim - 1))
            action = decided if action is None else torch.where(rows, decided, action)
        assert action is not None
        return action

    def _decide_all(self, params: Any, features: Tensor, mode: str, ask: Ask, seeds: np.ndarray) -> Tensor:
        if mode == "sample":
            return self.head.decide(params, features, seeds, seeds if ask.held is None else ask.held)
        if mode == "mode":
            return self.head.mode(params)
        if mode == "random":
            return self.head.anything(params, seeds).to(features.device)
        raise SpecError(f"mode {mode!r}; one of {', '.join(MODES)}")

    def _extra(
        self, name: str, params: Any, action: Tensor, obs: Mapping[str, Tensor], features: Tensor
    ) -> Tensor:
        if name == "log_prob":
            each: Tensor = self._of_actions(self.head.log_prob, self.head.log_probs)(params, action)
            return each
        if name == "value":
            return self._value(obs, features)
        if name == "entropy":
            return self.head.entropy(params)
        raise SpecError(f"act was asked for {name!r}; it gives {', '.join(sorted(self.spec.extras))}")

    def _checked_state(self, state: np.ndarray | None, num_rows: int) -> np.ndarray:
        if state is None or state.shape != (num_rows, self.spec.state_size):
            came = "none" if state is None else list(state.shape)
            raise SpecError(f"recurrent state must be [{num_rows}, {self.spec.state_size}], came {came}")
        return state
