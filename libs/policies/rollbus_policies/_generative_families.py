"""The torch side of the plug-ins flow and diffusion.

Symbols as in `_generative`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rollbus_accel.kernels.flow_step import flow_log_prob, flow_step, samplers
from rollbus_core import rng
from rollbus_policies._ends import Clip, Tanh
from rollbus_policies._generative import Generative
from rollbus_policies._observing import of_batch
from rollbus_policies._refine import Refining
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from rollbus_policies import diffusion, flow

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class FlowPolicy(Generative):
    """The expert gives velocities, and deviations for the sampler flow_noise."""

    def __init__(self, config: flow.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        #: Whether the deviation of a step is learned.
        self.learns_deviation = config.sampler == "flow_noise"
        num_out = spec.action.size * (2 if self.learns_deviation else 1)
        super().__init__(config, spec, num_out, critic=critic, frame_stack=frame_stack)
        self.wants = self.wants | {"velocity"}
        self.ends = Tanh() if config.bound == "tanh" else Clip()
        places = torch.arange(config.steps)
        std = self._weights(self._time(places), torch.ones(config.steps, 1)).std
        self.noisy_steps = tuple((std.flatten() > 0).nonzero()[:, 0].tolist())

    def velocity(self, x: Tensor, time: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        """Velocity [B, C, A] at ``x`` and ``time`` [B], and the learned deviation (empty without)."""
        out = self.denoised(x, time, context)
        velocity, raw = out.split([x.shape[-1], out.shape[-1] - x.shape[-1]], -1)
        low, high = self.config.min_std, self.config.max_std
        return velocity, low * (high / low) ** torch.sigmoid(raw)

    def forward(self, batch: Any, want: tuple[str, ...]) -> dict[str, Tensor]:
        """As `Generative.forward`; "velocity" [..., C, A] is that at ``x`` [..., C, A] and ``time`` [...]."""
        rest = tuple(name for name in want if name != "velocity")
        result = super().forward(batch, rest)
        if "velocity" in want:
            x, time = batch["x"], batch["time"]
            context = self.context(self.flattened(self.told(of_batch(batch)))[0], self.normaliser)
            flat = x.reshape(-1, *self._shape), time.reshape(-1)
            result["velocity"] = self.velocity(*flat, context)[0].reshape(x.shape)
        return result

    def move(self, x: Tensor, step: int, context: Any, seeds: np.ndarray, noisy: Tensor) -> Tensor:
        time = self._time(torch.full((len(x),), step, device=x.device))
        velocity, std = self.velocity(x, time, context)
        chunk = x.shape[1]
        of_rows = rng.step_seeds(
            np.repeat(seeds, chunk), np.tile(np.arange(chunk) + 1 + step * chunk, len(seeds))
        )
        weights = self._of_actions(time, std, noisy.repeat_interleave(chunk), chunk)
        after, _ = flow_step(
            x.flatten(0, 1), velocity.flatten(0, 1), time.repeat_interleave(chunk), weights,
            torch.from_numpy(of_rows.view(np.int64)).to(x.device),
        )  # fmt: skip
        return after.view_as(x)

    def score(self, x: Tensor, after: Tensor, step: Tensor, context: Any) -> tuple[Tensor, Tensor]:
        time = self._time(step)
        velocity, std = self.velocity(x, time, context)
        num_rows, chunk, size = x.shape
        weights = self._of_actions(time, std, None, chunk)
        log_prob = flow_log_prob(
            x.flatten(0, 1),
            after.flatten(0, 1),
            velocity.flatten(0, 1),
            time.repeat_interleave(chunk),
            weights,
        )
        log_std = weights.std.reshape(num_rows * chunk, -1).log().expand(-1, size)
        return log_prob.view(num_rows, chunk), (log_std + 0.5 + _HALF_LOG_2PI).sum(-1).view(num_rows, chunk)

    def transition(
        self, x: Tensor, step: Tensor, context: Any, noisy: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        time = self._time(step)
        velocity, std = self.velocity(x, time, context)
        weights = self._weights(time, std)
        if noisy is not None:
            weights = _where(noisy, weights, samplers.ode(time, self._dt(time)))
        at, data, noise = (column.view(-1, 1, 1) for column in (time, weights.data, weights.noise))
        mean = data * (x - velocity * at) + noise * (x + velocity * (1.0 - at))
        spread = weights.std.view(x.shape[0], 1, 1) if weights.std.ndim == 1 else weights.std
        return mean, spread.expand_as(mean)

    def cloning_losses(self, action: Tensor, context: Any) -> Tensor:
        time = torch.rand(len(action), device=action.device) ** (1.0 / 1.5)
        noise, at = torch.randn_like(action), time.view(-1, 1, 1)
        velocity, _ = self.velocity((1.0 - at) * action + at * noise, time, context)
        return ((velocity - (noise - action)) ** 2).mean(-1)

    def _time(self, step: Tensor) -> Tensor:
        return (self.config.steps - step) / self.config.steps

    def _dt(self, time: Tensor) -> Tensor:
        return torch.full_like(time, 1.0 / self.config.steps)

    def _weights(self, time: Tensor, std: Tensor) -> samplers.Weights:
        """The sampler's, of steps at ``time`` [L]; ``std`` [L, ...] is what the network learned."""
        dt = self._dt(time)
        if self.learns_deviation:
            return samplers.learned(time, dt, std)
        if self.config.sampler == "ode":
            return samplers.ode(time, dt)
        made = samplers.sde if self.config.sampler == "flow_sde" else samplers.cps
        return made(time, dt, self.config.noise_level)

    def _of_actions(self, time: Tensor, std: Tensor, noisy: Tensor | None, chunk: int) -> samplers.Weights:
        """The same for each action, [B C]: without noise where not ``noisy`` [B C]."""
        time = time.repeat_interleave(chunk)
        weights = self._weights(time, std.flatten(0, 1))
        return weights if noisy is None else _where(noisy, weights, samplers.ode(time, self._dt(time)))


class RefinedFlowPolicy(Refining, FlowPolicy):
    """With a network that has the last word."""

    def __init__(self, config: flow.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, critic=critic, frame_stack=frame_stack)
        self.build_refinement(spec, frame_stack)


def _where(chosen: Tensor, one: samplers.Weights, other: samplers.Weights) -> samplers.Weights:
    """``one`` where ``chosen`` [L], else ``other``, whose deviation is [L]."""
    std, plain = one.std, other.std
    rest = [1] * (std.ndim - 1)
    return samplers.Weights(
        torch.where(chosen, one.data, other.data),
        torch.where(chosen, one.noise, other.noise),
        torch.where(chosen.view(-1, *rest), std, plain.view(-1, *rest)),
    )


class DiffusionPolicy(Generative):
    """The expert gives the noise in its input."""

    kept: Tensor
    level: Tensor

    def __init__(self, config: diffusion.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, spec.action.size, critic=critic, frame_stack=frame_stack)
        #: float32 [levels + 1]: the share of the clean action's variance that is left, 1 at level 0.
        self.register_buffer("kept", cosine_schedule(config.levels), persistent=False)
        level = torch.linspace(config.levels, 0, config.steps + 1).round().long()
        #: int64 [N + 1]: the level of each state of the chain.
        self.register_buffer("level", level, persistent=False)
        self.noisy_steps = tuple(range(config.steps))

    def transition(
        self, x: Tensor, step: Tensor, context: Any, noisy: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        level, after = self.level[step], self.level[step + 1]
        now, then = (self.kept[place].view(-1, 1, 1) for place in (level, after))
        noise = self.denoised(x, level / self.config.levels, context)
        clean = ((x - (1.0 - now).sqrt() * noise) / now.sqrt()).clamp(-1.0, 1.0)
        noise = (x - now.sqrt() * clean) / (1.0 - now).sqrt()
        eta = torch.full_like(now, self.config.eta)
        if noisy is not None:
            eta = torch.where(noisy.view(-1, 1, 1), eta, torch.zeros_like(eta))
        std = eta * ((1.0 - then) / (1.0 - now)).sqrt() * (1.0 - now / then).sqrt()
        mean = then.sqrt() * clean + (1.0 - then - std**2).clamp(min=0.0).sqrt() * noise
        spread = std.clamp(min=self.config.min_std)
        if noisy is not None:
            spread = torch.where(noisy.view(-1, 1, 1), spread, torch.zeros_like(spread))
        return mean, spread.expand_as(mean)

    def cloning_losses(self, action: Tensor, context: Any) -> Tensor:
        level = torch.randint(1, self.config.levels + 1, (len(action),), device=action.device)
        kept, noise = self.kept[level].view(-1, 1, 1), torch.randn_like(action)
        noised = kept.sqrt() * action + (1.0 - kept).sqrt() * noise
        return ((self.denoised(noised, level / self.config.levels, context) - noise) ** 2).mean(-1)


class RefinedDiffusionPolicy(Refining, DiffusionPolicy):
    """With a network that has the last word."""

    def __init__(self, config: diffusion.Config, spec: EnvSpec, *, critic: bool, frame_stack: int) -> None:
        super().__init__(config, spec, critic=critic, frame_stack=frame_stack)
        self.build_refinement(spec, frame_stack)


def cosine_schedule(levels: int) -> Tensor:
    """float32 [levels + 1] of Nichol and Dhariwal (2102.09672): 1 at level 0, at least 1e-3 at the last."""
    angle = (torch.arange(levels + 1, dtype=torch.float64) / levels + 0.008) / 1.008 * (0.5 * math.pi)
    share = torch.cos(angle) ** 2
    return (share / share[0]).clamp(1e-3, 1.0).float()
