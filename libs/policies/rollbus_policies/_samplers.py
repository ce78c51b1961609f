"""Deciding in numpy: the twins of the heads in `_heads`, for small batches outside torch.

At 16 rows a torch operation costs more than its arithmetic; numpy's costs a third. Same noise, same
formulas: actions equal the head's, log-probabilities agree within 1e-5.
Symbols: B rows, P network outputs, A action dimensions, D discrete dimensions, n classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_policies.base import Act, Ask
from rollbus_wire.errors import SpecError

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_MODES = ("sample", "mode", "random")


class Sampler:
    """Decides from raw network outputs float32 [B, P]. ``head`` gives noise and environment actions."""

    #: Names of the policy's tensors that it reads.
    weights: tuple[str, ...] = ()

    def __init__(self, head: Any) -> None:
        self._head = head
        self._extras = {"log_prob": self.log_prob, "entropy": lambda params, _: self.entropy(params)}

    def use(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Decide with these values of `weights` from here on."""

    def decide(self, raw: np.ndarray, ask: Ask, seeds: np.ndarray) -> Act:
        """Decisions and the extras "log_prob" and "entropy" where asked for."""
        params = self.params(raw)
        action = self._decide(params, ask.mode, seeds)
        extras = {}
        for name in ask.want:
            if name in self._extras:
                extras[name] = self._extras[name](params, action)
        return Act(self._head.env_action(action), action, None, extras)

    def params(self, raw: np.ndarray) -> Any:
        """What the other methods take."""
        raise NotImplementedError

    def mode(self, params: Any) -> np.ndarray:
        """See `Head.mode`."""
        raise NotImplementedError

    def sample(self, params: Any, noise: np.ndarray) -> np.ndarray:
        """See `Head.sample`."""
        raise NotImplementedError

    def log_prob(self, params: Any, action: np.ndarray) -> np.ndarray:
        """float32 [B] of stored actions."""
        raise NotImplementedError

    def entropy(self, params: Any) -> np.ndarray:
        """float32 [B] in nats."""
        raise NotImplementedError

    def _decide(self, params: Any, mode: Any, seeds: np.ndarray) -> np.ndarray:
        if isinstance(mode, str):
            return self._decide_all(params, mode, seeds)
        if len(mode) != len(seeds):
            raise SpecError(f"{len(mode)} modes for {len(seeds)} rows")
        action: np.ndarray | None = None
        for each in sorted(set(mode)):
            decided = self._decide_all(params, each, seeds)
            if action is None:
                action = decided.copy()
            rows = np.array([m == each for m in mode])
            action[rows] = decided[rows]
        assert action is not None
        return action

    def _decide_all(self, params: Any, mode: str, seeds: np.ndarray) -> np.ndarray:
        if mode == "sample":
            return self.sample(params, self._head.noise(seeds))
        if mode == "mode":
            return self.mode(params)
        if mode == "random":
            return self._head.random(seeds)
        raise SpecError(f"mode {mode!r}; one of {', '.join(_MODES)}")


class CategoricalSampler(Sampler):
    """Parameters: logits below their maximum, their exponentials, the logarithm of the sum of these.

    Works on the last axis: [B, n], and [B, D, n] for several choices.
    """

    def params(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shifted = raw - np.maximum.reduce(raw, -1, keepdims=True)
        rates = np.exp(shifted)
        return shifted, rates, np.log(np.add.reduce(rates, -1))

    def mode(self, params: Any) -> np.ndarray:
        return params[0].argmax(-1)

    def sample(self, params: Any, noise: np.ndarray) -> np.ndarray:
        # The race of clocks does not change if all rates are multiplied by the same number.
        return (params[1] / noise).argmin(-1)

    def log_prob(self, params: Any, action: np.ndarray) -> np.ndarray:
        shifted, _, log_sum = params
        return shifted[np.arange(len(action)), action] - log_sum

    def entropy(self, params: Any) -> np.ndarray:
        shifted, rates, log_sum = params
        return log_sum - (rates * shifted).sum(-1) / rates.sum(-1)


class QSampler(Sampler):
    """Greedy, but uniform with probability ``exploration``. Parameters: Q [B, n]."""

    weights: tuple[str, ...] = ("head.exploration",)

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self._extras, self._exploration = {}, np.float32(0.0)

    def use(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._exploration = np.float32(tensors["head.exploration"])

    def params(self, raw: np.ndarray) -> np.ndarray:
        if not self._head.dueling:
            return raw
        advantage = raw[:, 1:]
        return raw[:, :1] + advantage - advantage.mean(1, keepdims=True)

    def mode(self, params: np.ndarray) -> np.ndarray:
        return params.argmax(1)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        anything = (noise[:, 1] * self._head.num).astype(np.int64)
        return np.where(noise[:, 0] < self._exploration, anything, self.mode(params))


class MultiCategoricalSampler(CategoricalSampler):
    """D independent choices from one row of logits [B, P]."""

    def __init__(self, head: Any, index: np.ndarray, absent: np.ndarray, absent_logit: float) -> None:
        super().__init__(head)
        self._index, self._absent, self._logit = index, absent, np.float32(absent_logit)

    def params(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return super().params(np.where(self._absent, self._logit, raw[:, self._index]))

    def log_prob(self, params: Any, action: np.ndarray) -> np.ndarray:
        shifted, _, log_sum = params
        return (np.take_along_axis(shifted, action[..., None], -1)[..., 0] - log_sum).sum(-1)

    def entropy(self, params: Any) -> np.ndarray:
        return super().entropy(params).sum(-1)


class GaussianSampler(Sampler):
    """Diagonal Gaussian whose log_std does not depend on the observation. Parameters: the mean [B, A]."""

    weights: tuple[str, ...] = ("head.log_std",)

    def __init__(self, head: Any) -> None:
        super().__init__(head)
        self.use({"head.log_std": np.zeros(head.num_params, np.float32)})

    def use(self, tensors: Mapping[str, np.ndarray]) -> None:
        log_std = np.asarray(tensors["head.log_std"], np.float32)
        self._std, self._inverse = np.exp(log_std), np.exp(-log_std)
        self._log_scale = np.float32((log_std + np.float32(_HALF_LOG_2PI)).sum())

    def params(self, raw: np.ndarray) -> np.ndarray:
        return raw

    def mode(self, params: np.ndarray) -> np.ndarray:
        # A copy: the engine's buffer is used again.
        return self._shaped(params.copy())

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        noise *= self._std
        noise += params
        return self._shaped(noise)

    def log_prob(self, params: np.ndarray, action: np.ndarray) -> np.ndarray:
        # From the stored action, not from the noise: what the learner sees has been rounded.
        z = (action.reshape(params.shape) - params) * self._inverse
        return np.float32(-0.5) * np.einsum("ba,ba->b", z, z) - self._log_scale

    def entropy(self, params: np.ndarray) -> np.ndarray:
        return np.full(len(params), self._log_scale + np.float32(0.5 * params.shape[1]), np.float32)

    def _shaped(self, flat: np.ndarray) -> np.ndarray:
        return flat.reshape(-1, *self._head.action[1])


class DeterministicSampler(GaussianSampler):
    """tanh of the network's output, with noise of deviation ``exploration``. Parameters: [B, A]."""

    weights = ("head.exploration",)

    def __init__(self, head: Any) -> None:
        Sampler.__init__(self, head)
        self._extras, self._exploration = {}, np.float32(0.0)

    def use(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._exploration = np.float32(tensors["head.exploration"])

    def params(self, raw: np.ndarray) -> np.ndarray:
        return np.tanh(raw)

    def sample(self, params: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return self._shaped(np.clip(params + self._exploration * noise, -1.0, 1.0))


class StateGaussianSampler(GaussianSampler):
    """Gaussian whose log_std comes from the network. Parameters: (mean, log_std), both [B, A]."""

    weights = ()

    def __init__(self, head: Any, limits: tuple[float, float]) -> None:
        Sampler.__init__(self, head)
        self._limits = limits

    def use(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Nothing: all parameters come from the network."""

    def params(self, raw: np.ndarray) -> Any:
        half = raw.shape[1] // 2
        return raw[:, :half], np.clip(raw[:, half:], *self._limits)

    def mode(self, params: Any) -> np.ndarray:
        return self._shaped(params[0].copy())

    def sample(self, params: Any, noise: np.ndarray) -> np.ndarray:
        mean, log_std = params
        return self._shaped(mean + np.exp(log_std) * noise)

    def log_prob(self, params: Any, action: np.ndarray) -> np.ndarray:
        return self._elements(params, action.reshape(params[0].shape)).sum(-1)

    def entropy(self, params: Any) -> np.ndarray:
        return (params[1] + np.float32(0.5 + _HALF_LOG_2PI)).sum(-1)

    @staticmethod
    def _elements(params: Any, u: np.ndarray) -> np.ndarray:
        mean, log_std = params
        z = (u - mean) * np.exp(-log_std)
        return np.float32(-0.5) * z * z - (log_std + np.float32(_HALF_LOG_2PI))


class TanhGaussianSampler(StateGaussianSampler):
    """Squashed Gaussian, log_std from the network. Parameters: (mean, log_std), both [B, A]."""

    def __init__(
        self, head: Any, limits: tuple[float, float], nodes: np.ndarray, weights: np.ndarray
    ) -> None:
        super().__init__(head, limits)
        self._nodes, self._node_weights = nodes, weights

    def log_prob(self, params: Any, action: np.ndarray) -> np.ndarray:
        u = action.reshape(params[0].shape)
        return (self._elements(params, u) - _log_slope(u)).sum(-1)

    def entropy(self, params: Any) -> np.ndarray:
        mean, log_std = params
        u = mean[..., None] + np.exp(log_std)[..., None] * self._nodes
        elements = log_std + np.float32(0.5 + _HALF_LOG_2PI) + _log_slope(u) @ self._node_weights
        return elements.sum(-1)


def _log_slope(u: np.ndarray) -> np.ndarray:
    """log(1 - tanh(u)^2), finite for every finite u."""
    return np.float32(2.0) * (np.float32(math.log(2.0)) - u - np.logaddexp(np.float32(0.0), -2 * u))
