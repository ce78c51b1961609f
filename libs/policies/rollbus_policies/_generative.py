"""What flow and diffusion policies share: actions are the end of a chain of steps that begins in noise.

The stored action is float32 [(N + 1) C A + 1]: the chain's states, noise first, then which step is scored, or
-1 for all that have a deviation. `log_prob` is the sum over the scored steps, given the state before each.
Symbols: B rows, N steps, C actions of one decision of which k are executed, A elements of an action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollbus_core import rng
from rollbus_policies._bounds import Bounds
from rollbus_policies._condition import CONDITION, UNKNOWN
from rollbus_policies._config import GenerativeConfig
from rollbus_policies._context import Context, ContextCritic, Expert, pooled
from rollbus_policies._critics import ValueNet
from rollbus_policies._ends import Clip
from rollbus_policies._executed import demonstrated, executed, mean_over
from rollbus_policies._heads import chunk_spec
from rollbus_policies._networks import OUTPUT_GAIN, exact, linear
from rollbus_policies._observing import VALUES, Observing, of_batch, rows_in, to_array
from rollbus_policies._steer import Steer
from rollbus_policies._transforms import to_tensor
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import SpecError
from rollbus_wire.spec import EnvSpec

#: Streams of a row's random numbers beside those of its steps.
_OF_INDEX = 1 << 32
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Guided(NamedTuple):
    """Contexts without and with the label."""

    without: Any
    told: Any


def plain(context: Any) -> Any:
    """The context of the label alone."""
    return context.told if isinstance(context, Guided) else context


class Generative(Observing):
    """A family gives `transition` and `cloning_losses`."""

    wants = frozenset({"log_prob", "entropy", "value", "sample", "features", "cloning_loss"})
    wants = wants | {"chain_log_prob"}

    def __init__(
        self, config: GenerativeConfig, env: EnvSpec, num_out: int, *, critic: bool, frame_stack: int
    ) -> None:
        """``num_out``: numbers that the expert gives per action."""
        super().__init__(config, env, frame_stack)
        name = f"{env.name}: a {config.name} policy"
        if env.action.kind != "continuous":
            raise SpecError(f"{name} makes continuous actions, these are {env.action.kind}")
        self._bounds = Bounds(chunk_spec(env.action, config.chunk))
        if not self._bounds.finite:
            raise SpecError(f"{name} needs finite action bounds, not {env.action.low} to {env.action.high}")
        chunk, size = config.chunk, env.action.size
        self._shape, self._states = (chunk, size), config.steps + 1
        width = self._states * chunk * size + 1
        several = (config.num_executed,) if chunk > 1 else ()
        self.wants = self.wants | ({"steering"} if config.steer else set())
        self.spec = PolicySpec(
            action=("float32", (width,)), frame_stack=frame_stack, chunk=chunk, execute=config.num_executed,
            action_size=size, noise=width - 1, generative=True, no_trunk="its chain of steps runs in torch",
        )  # fmt: skip
        if "log_prob" not in config.lacks() and config.guidance == 1.0:  # guidance has another density
            self.spec.extras |= {"log_prob": ("float32", several), "entropy": ("float32", ())}
        sizes = {"width": config.width, "num_heads": config.num_heads}
        self.context = Context(env, self.keys, frame_stack, layers=config.layers, **sizes)
        self.expert = Expert(size, chunk, layers=config.expert_layers, **sizes)
        self.output = linear(config.width, num_out, "orthogonal", OUTPUT_GAIN)
        if config.steer:
            self.steer = Steer(config.width, size, config.steer_hidden, config.steer_bound)
        if critic and config.critic == "own":
            self.build_critic(
                ContextCritic(
                    env, self.critic_keys, frame_stack, config.critic_hidden, self.value_head, **sizes
                )
            )
        elif critic:
            net = ValueNet(config.width, config.critic_hidden, "relu", "orthogonal", self.value_head)
            self.build_critic(net)

    # --- what a family gives ------------------------------------------------------------------------

    #: Steps that add noise when sampled.
    noisy_steps: tuple[int, ...] = ()
    #: How a chain's end becomes an action.
    ends = Clip()

    def transition(
        self, x: Tensor, step: Tensor, context: Any, noisy: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean and deviation [B, C, A] of the state behind ``x`` [B, C, A] at ``step`` int64 [B].

        Rows that are not ``noisy`` bool [B] have deviation 0 and the mean of the deterministic sampler.
        """
        raise NotImplementedError

    def cloning_losses(self, action: Tensor, context: Any) -> Tensor:
        """[B, C] for demonstrated actions [B, C, A] in [-1, 1]."""
        raise NotImplementedError

    def denoised(self, x: Tensor, time: Tensor, context: Any) -> Tensor:
        """What the network gives for ``x`` [B, C, A] with the noise of ``time`` [B]: [B, C, num_out]."""
        if isinstance(context, Guided):
            without, told = (self.denoised(x, time, each) for each in (context.without, context.told))
            return without + self.config.guidance * (told - without)
        return exact(self.output, self.expert.noised(context, x, time))

    def _guided(self, obs: dict[str, Tensor]) -> Any:
        """The context of ``obs``, or two for guidance (2207.12598): with the label and without."""
        told = self.context(obs, self.normaliser)
        if CONDITION not in self.keys or self.config.guidance == 1.0:
            return told
        without = {key: value for key, value in obs.items() if key != CONDITION}
        return Guided(self.context(self.told(without, UNKNOWN), self.normaliser), told)

    def move(self, x: Tensor, step: int, context: Any, seeds: np.ndarray, noisy: Tensor) -> Tensor:
        """The state behind ``x`` [B, C, A], with each row's own noise where ``noisy`` bool [B]."""
        index = torch.full((len(x),), step, device=x.device)
        mean, std = self.transition(x, index, context, noisy)
        noise = rng.normal(rng.step_seeds(seeds, np.full(len(seeds), step + 1)), x[0].numel())
        return mean + std * to_tensor(noise, x.device).view_as(x)

    def score(self, x: Tensor, after: Tensor, step: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy [B, C] of the step from ``x`` to ``after``."""
        mean, std = self.transition(x, step, context)
        z = (after - mean) / std
        log_std = std.log().expand_as(mean)
        return (-0.5 * z * z - log_std - _HALF_LOG_2PI).sum(-1), (log_std + 0.5 + _HALF_LOG_2PI).sum(-1)

    # --- the contract -------------------------------------------------------------------------------

    @torch.inference_mode()
    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        """Decide for B rows; see `rollbus_policies.base.Policy.act`."""
        device, num = self.output.weight.device, len(seeds)
        observed = self.observed(obs, ask.want, device)
        context = self._guided(observed)
        noise = rng.normal(seeds, math.prod(self._shape)) if ask.noise is None else ask.noise
        start = to_tensor(np.ascontiguousarray(noise, np.float32), device).reshape(num, *self._shape)
        chain, index = self._decided(obs, observed, context, start, ask, seeds)
        extras = self._extras(chain, index, context, observed, ask.want)
        stored = torch.cat([chain.flatten(1), index[:, None].float()], 1)
        action = to_array(stored, device)
        return Act(self.env_action(action), action, None, {n: to_array(v, device) for n, v in extras.items()})

    def forward(self, batch: Mapping[str, Tensor], want: tuple[str, ...]) -> dict[str, Tensor]:
        """Evaluate with gradient; see `rollbus_policies.base.Policy.__call__`.

        "chain_log_prob" is [..., n, k, A]: of each element of the n steps that add noise, unmasked.
        """
        self.check_wanted(want)
        obs, lead = self.flattened(self.told(of_batch(batch)))
        context = self.context(obs, self.normaliser)
        result: dict[str, Tensor] = {}
        if "log_prob" in want or "entropy" in want:
            chain, index = self._parts(batch["action"])
            log_prob, entropy = self._scores(chain, index, context)
            num_steps = batch["num_steps"].reshape(-1) if "num_steps" in batch else None
            scores = {
                "log_prob": self._total(log_prob, num_steps),
                "entropy": self._total(entropy, num_steps),
            }
            result = {name: score for name, score in scores.items() if name in want}
        if "chain_log_prob" in want:
            result["chain_log_prob"] = self._of_steps(self._parts(batch["action"])[0], context)
        if "sample" in want:
            result |= self._sample(batch["noise"].reshape(-1, self.spec.noise), context)
        if "steering" in want:
            chosen, log_prob = self.steer.sample(pooled(*context), batch["noise"].reshape(-1, self._shape[1]))
            result |= {"steering": chosen, "steering_log_prob": log_prob}
        if "cloning_loss" in want:
            result["cloning_loss"] = self._cloning_loss(batch, context)
        if VALUES & set(want):
            result |= self.valued(self._critic_output(obs, context), batch, want)
        if "features" in want:
            result["features"] = pooled(*plain(context))
        return {name: value.reshape(*lead, *value.shape[1:]) for name, value in result.items()}

    def clean(self, action: Tensor) -> Tensor:
        """The end of stored chains [..., S] in [-1, 1], all actions: [..., C, A]."""
        return self.ends.to_unit(action[..., -1 - math.prod(self._shape) : -1].unflatten(-1, self._shape))

    def squash(self, action: Tensor) -> Tensor:
        """What is executed of stored ``action`` [..., S], in [-1, 1]: [..., A], or [..., k, A]."""
        last = self.clean(action)
        return last[..., 0, :] if self.spec.chunk == 1 else last[..., : self.spec.execute, :]

    def env_action(self, action: np.ndarray) -> np.ndarray:
        """What the environment executes for stored ``action`` [B, S]."""
        unit = self.ends.to_unit(torch.from_numpy(action[:, -1 - math.prod(self._shape) : -1])).numpy()
        last = self._bounds.scale(self._bounds.shaped(unit))
        return last[:, 0] if self.spec.chunk == 1 else last[:, : self.spec.execute]

    def from_env_action(self, action: np.ndarray) -> np.ndarray:
        """A stored action that ends in ``action`` [B, C, ...] ([B, ...] where C is 1), from noise 0."""
        unit = self._bounds.unscale(
            action.reshape(self._bounds.shaped(action.reshape(len(action), -1)).shape)
        )
        end = self.ends.from_unit(torch.from_numpy(unit.reshape(-1, *self._shape)))
        chain = self._straight(end, torch.zeros_like(end)).flatten(1).numpy()
        return np.concatenate([chain, np.full((len(action), 1), -1.0, np.float32)], 1)

    def deployed(
        self, obs: Mapping[str, Tensor], state: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(what is executed for rows ``obs`` [B, ...] from ``noise`` [B, C, A] in mode "mode", None).

        A steered policy makes its own ``noise``.
        """
        told = self.told(dict(obs))
        context = self._guided(told)
        if noise is None:
            noise = self.steer.mode(pooled(*plain(context))).unsqueeze(1).expand(-1, *self._shape)
        x = self._ended(told, context, noise)
        action = self._bounds.scale_tensor(self.ends.to_unit(x).reshape(-1, *self._bounds.low.shape))
        return (action[:, 0] if self.spec.chunk == 1 else action[:, : self.spec.execute]), None

    def undisturbed(self, context: Any, noise: Tensor) -> Tensor:
        """The end [B, C, A] of a chain from ``noise`` [B, C, A] that adds none on its way."""
        x, quiet = noise, torch.zeros(noise.shape[0], dtype=torch.bool, device=noise.device)
        for step in range(self._states - 1):
            x, _ = self.transition(x, torch.full_like(quiet, step, dtype=torch.int64), context, quiet)
        return x

    def _ended(self, obs: Mapping[str, Tensor], context: Any, noise: Tensor) -> Tensor:
        """What is decided in mode "mode" from ``noise`` [B, C, A], as a chain ends."""
        return self.undisturbed(context, noise)

    def _decided(
        self, given: Mapping[str, np.ndarray], obs: Mapping[str, Tensor], context: Any, start: Tensor,
        ask: Ask, seeds: np.ndarray,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Chains [B, N + 1, C, A] of rows in their modes, and the step that is scored of each, [B].

        ``given`` are all observations of the rows, ``obs`` those that the policy reads.
        """
        num, index = len(seeds), self._drawn_index(seeds)
        sampled, random = (rows_in(ask.mode, name, num) for name in ("sample", "random"))
        if self.config.steer:
            if ask.noise is None:
                modes = [ask.mode] * num if isinstance(ask.mode, str) else ask.mode
                steered = self.steer.start(pooled(*plain(context)), [*modes], seeds)
                start = steered.unsqueeze(1).expand(start.shape)
            return self._chain(context, start, index, np.zeros(num, bool), seeds), index
        chain = self._chain(context, start, index, sampled, seeds)
        if random.any():
            unit = 2.0 * rng.uniform(seeds, math.prod(self._shape)).astype(np.float32) - 1.0
            end = self.ends.from_unit(to_tensor(unit, start.device).reshape(start.shape))
            straight = self._straight(end, start)
            chain = torch.where(torch.from_numpy(random).to(start.device).view(-1, 1, 1, 1), straight, chain)
        return chain, index

    # --- chains -------------------------------------------------------------------------------------

    def _chain(
        self, context: Any, x: Tensor, index: Tensor, sampled: np.ndarray, seeds: np.ndarray
    ) -> Tensor:
        """States [B, N + 1, C, A] from ``x``, with noise in ``sampled`` rows at ``index`` or everywhere."""
        may = torch.from_numpy(sampled).to(x.device)
        states = [x]
        for step in range(self._states - 1):
            noisy = may & ((index < 0) | (index == step))
            states.append(self.move(states[-1], step, context, seeds, noisy))
        return torch.stack(states, 1)

    def _straight(self, end: Tensor, start: Tensor) -> Tensor:
        """States [B, N + 1, C, A] on the straight line from ``start`` to ``end`` [B, C, A]."""
        left = torch.linspace(1.0, 0.0, self._states, device=end.device).view(1, -1, 1, 1)
        return left * start.unsqueeze(1) + (1.0 - left) * end.unsqueeze(1)

    def _drawn_index(self, seeds: np.ndarray) -> Tensor:
        """int64 [B]: the step that is scored, or -1 for all."""
        device = self.output.weight.device
        places = np.array(self.noisy_steps, np.int64)
        if self.config.stochastic_steps == "all" or not len(places):
            return torch.full((len(seeds),), -1, device=device)
        uniform = rng.uniform(rng.step_seeds(seeds, np.full(len(seeds), _OF_INDEX)), 1)[:, 0]
        return torch.from_numpy(places[(uniform * len(places)).astype(np.int64)]).to(device)

    def _parts(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """(chain [L, N + 1, C, A], index int64 [L]) of stored actions [..., S]."""
        flat = action.reshape(-1, action.shape[-1])
        return flat[:, :-1].reshape(-1, self._states, *self._shape), flat[:, -1].long()

    def _scores(self, chain: Tensor, index: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        """Log-prob and entropy [B, C]. Raises `SpecError` where a step has no deviation."""
        if not self.noisy_steps:
            raise SpecError(f"no step of the chain adds noise, so none has a density; {self._remedy()}")
        if self.config.stochastic_steps == "one":
            if not bool(torch.isin(index, torch.tensor(self.noisy_steps, device=index.device)).all()):
                raise SpecError("a stored action names a step without deviation: it has no density")
            rows = torch.arange(len(chain), device=chain.device)
            return self.score(chain[rows, index], chain[rows, index + 1], index, context)
        log_prob = entropy = torch.zeros((), device=chain.device)
        for step in self.noisy_steps:
            at = torch.full_like(index, step)
            one, other = self.score(chain[:, step].contiguous(), chain[:, step + 1].contiguous(), at, context)
            log_prob, entropy = log_prob + one, entropy + other
        return log_prob, entropy

    def _of_steps(self, chain: Tensor, context: Any) -> Tensor:
        """Log-prob [L, n, k, A] of the elements that each noisy step of ``chain`` made."""
        found = []
        for step in self.noisy_steps:
            at = torch.full((len(chain),), step, device=chain.device)
            mean, std = self.transition(chain[:, step], at, context)
            z = (chain[:, step + 1] - mean) / std
            found.append(-0.5 * z * z - std.log() - _HALF_LOG_2PI)
        return torch.stack(found, 1)[:, :, : self.spec.execute]

    def _remedy(self) -> str:
        return self.config.lacks().get("log_prob", "raise policy.steps")

    # --- details ------------------------------------------------------------------------------------

    def _extras(
        self, chain: Tensor, index: Tensor, context: Any, obs: Mapping[str, Tensor], want: tuple[str, ...]
    ) -> dict[str, Tensor]:
        missing = [name for name in want if name not in self.spec.extras]
        if missing and missing[0] != "value":
            raise SpecError(
                f"act was asked for {missing[0]!r}; it gives {', '.join(sorted(self.spec.extras))}"
            )
        result = {}
        if "log_prob" in want or "entropy" in want:
            log_prob, entropy = self._scores(chain, index, context)
            several = self.spec.chunk > 1
            result["log_prob"] = log_prob[:, : self.spec.execute] if several else log_prob[:, 0]
            result["entropy"] = self._total(entropy, None)
        if "value" in want:
            result["value"] = self.value_head(self._critic_output(obs, context))
        return {name: result[name] for name in want}

    def _total(self, per_action: Tensor, num_steps: Tensor | None) -> Tensor:
        return executed(per_action[:, : self.spec.execute], None if self.spec.chunk == 1 else num_steps)

    def _sample(self, noise: Tensor, context: Any) -> dict[str, Tensor]:
        """A chain with gradient from ``noise`` [L, (N + 1) C A], and the density of the whole path."""
        parts = noise.view(-1, self._states, *self._shape)
        x, states = parts[:, 0], [parts[:, 0]]
        log_prob = (-0.5 * x * x - _HALF_LOG_2PI).sum(-1)
        for step in range(self._states - 1):
            at = torch.full((len(x),), step, device=x.device)
            mean, std = self.transition(x, at, context)
            z = parts[:, step + 1]
            x = mean + std * z
            if step in self.noisy_steps:
                log_prob = log_prob + (-0.5 * z * z - std.log() - _HALF_LOG_2PI).sum(-1)
            states.append(x)
        log_prob = log_prob - self.ends.log_slope(x)
        whole = torch.full((len(x), 1), -1.0, device=x.device)
        sample = torch.cat([torch.stack(states, 1).flatten(1), whole], 1)
        return {
            "sample": sample, "sample_log_prob": self._total(log_prob, None), "squashed": self.squash(sample),
        }  # fmt: skip

    def _cloning_loss(self, batch: Mapping[str, Tensor], context: Any) -> Tensor:
        action, valid = demonstrated(batch, self._bounds, *self._shape)
        return mean_over(self.cloning_losses(self.ends.from_unit(action), context), valid)

    def _critic_output(self, obs: Mapping[str, Tensor], context: Any) -> Tensor:
        self.need_critic()
        critic: Any = self.critic
        return (
            critic(obs, self.normaliser) if self.config.critic == "own" else critic(pooled(*plain(context)))
        )
