"""Engines that compute the policy's trunk their own way and decide by the policy's sampler.

A trunk is the deterministic part of a policy (`rollbus_policies.trunk`): its outputs are the parameters of
the action distribution, the recurrent state and the critic's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollbus_actor.engines._weights import WeightHolder
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask
from rollbus_wire.errors import SpecError

#: Rows of the probe after each swap; how far outputs may be from the policy's, relative to their size.
PROBE_ROWS, PROBE_TOLERANCE = 2, 1e-3


def no_trunk(policy: Any) -> str:
    """Why ``policy`` runs in torch only; "" if it describes its trunk and samples outside of torch."""
    described = all(hasattr(policy, name) for name in ("describe", "infer", "sampler"))
    reason: str = getattr(getattr(policy, "spec", None), "no_trunk", "")
    return reason or ("" if described else "the policy does not describe its trunk")


class TrunkEngine(WeightHolder):
    """An engine gives `_infer`; the policy's tensors are its weights, in place."""

    def __init__(self, policy: Any, device: str = "cpu", threads: int = 0) -> None:
        super().__init__(policy, device, threads)
        reason = no_trunk(policy)
        if reason:
            raise SpecError(f"{type(policy).__name__}: {reason}; set actor.engine: torch_local")
        self._sampler = policy.sampler()
        self._with_value = "value" in policy.spec.extras
        self._probe_inputs: dict[str, np.ndarray] = {}

    def _decide(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Act:
        value = "value" in ask.want
        self._check(ask, state, len(seeds))
        outputs = self._infer(obs, state, value, len(seeds))
        act: Act = self._sampler.decide(outputs["params"], ask, seeds)
        act.state = outputs.get("state")
        if value:
            act.extras["value"] = outputs["value"]
        return act

    def _infer(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, value: bool, num_rows: int
    ) -> Mapping[str, np.ndarray]:
        """The trunk's outputs for B rows. "params" may be a buffer of the engine; the others are new."""
        raise NotImplementedError

    def _check(self, ask: Ask, state: np.ndarray | None, num_rows: int) -> None:
        spec = self.policy.spec
        for name in ask.want:
            if name not in spec.extras:
                raise SpecError(
                    f"act was asked for {name!r}; this policy gives {', '.join(sorted(spec.extras))} "
                    "(a value only if it was made with its critic)"
                )
        size = spec.state_size
        if size and (state is None or state.shape != (num_rows, size)):
            came = "none" if state is None else list(state.shape)
            raise SpecError(f"recurrent state must be [{num_rows}, {size}], came {came}")

    def _swapped(self, version: Version) -> None:
        own = self.policy.state_dict()
        self._sampler.use({name: own[name].cpu().numpy() for name in self._sampler.weights})

    def _probe(self, version: Version) -> None:
        """Raise `SpecError` unless the engine's outputs are those of the policy's present tensors."""
        if not self._probe_inputs:
            self._probe_inputs = self.policy.describe(self._with_value).draw(PROBE_ROWS, 0)
        inputs = self._probe_inputs
        obs = {key[4:]: value for key, value in inputs.items() if key.startswith("obs/")}
        ours = self._infer(obs, inputs.get("state"), self._with_value, PROBE_ROWS)
        with self._torch.inference_mode():
            tensors = {key: self._torch.from_numpy(value) for key, value in inputs.items()}
            theirs = self.policy.infer(tensors, self._with_value)
        for name, value in theirs.items():
            expected = value.numpy()
            scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
            off = float(np.abs(ours[name] - expected).max(initial=0.0))
            if np.isfinite(expected).all() and not off <= PROBE_TOLERANCE * scale:
                raise SpecError(
                    f"weights {version}: the engine's {name} differ from the policy's by {off:.3g} after the "
                    "swap; set actor.engine: torch_local and report this"
                )
