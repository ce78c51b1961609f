"""Flow matching (Lipman et al., 2210.02747) in the shape of pi0 (2410.24164), small enough for two cores.

Images, instructions and proprioception are encoded together; an action expert attends to them and gives the
velocity from noise (t = 1) to C actions (t = 0). Samplers:

- ode: Euler's steps, no noise, no log-probs;
- flow_sde (pi_RL, 2510.25889): the same marginals with noise; flow_cps (2509.05952): as much noise as is
  taken away, the last step has none; flow_noise: Euler's mean and a learned deviation in [min_std, max_std].

Where it differs from pi0: one encoder with joint attention in place of a vision-language model, bytes or the
environment's own tokens as language. A demonstration's time is drawn from Beta(1.5, 1), as there.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rollbus_policies._config import GenerativeConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)

Sampler = Literal["ode", "flow_sde", "flow_cps", "flow_noise"]


class Config(GenerativeConfig):
    """Settings of the flow policy."""

    offers: ClassVar[frozenset[str]] = GenerativeConfig.offers | {"velocity"}

    name: str = "flow"
    sampler: Sampler = Field("flow_sde", description="How a step goes from noise towards the action.")
    noise_level: float = Field(0.5, gt=0, description="How much noise flow_sde and flow_cps add.")
    min_std: float = Field(0.08, gt=0, description="Smallest deviation that flow_noise learns.")
    max_std: float = Field(0.16, gt=0, description="Largest deviation that flow_noise learns.")
    bound: Literal["clip", "tanh"] = Field(
        "clip", description="How a chain's end becomes an action within its bounds; tanh for SAC-Flow."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Config:
        if self.min_std >= self.max_std:
            raise ValueError(f"min_std {self.min_std} is not below max_std {self.max_std}; lower it")
        return self

    def lacks(self) -> dict[str, str]:
        """Densities, without noise."""
        lacks = super().lacks()
        if self.steps == 1 and self.sampler in ("flow_sde", "flow_cps"):
            why = f"sampler {self.sampler} adds no noise at its only step; raise policy.steps"
        elif self.sampler == "ode":
            why = "sampler ode adds no noise; set policy.sampler: flow_sde"
        else:
            return lacks
        return dict.fromkeys(("log_prob", "entropy", "chain_log_prob"), why) | lacks


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._generative_families import FlowPolicy, RefinedFlowPolicy

    family = RefinedFlowPolicy if config.refine else FlowPolicy
    return family(config, spec, critic=critic, frame_stack=frame_stack)
