"""Diffusion policy (Chi et al., 2303.04137): C actions out of noise by denoising steps, DDPM or DDIM.

Every reverse step is a Gaussian whose deviation is clamped below, so that it can be sampled for exploration
and scored (DPPO, 2409.00588); the clean action is clipped to the bounds within each step.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from rollbus_policies._config import GenerativeConfig
from rollbus_wire.spec import EnvSpec

needs = ("torch",)


class Config(GenerativeConfig):
    """Settings of the diffusion policy."""

    name: str = "diffusion"
    steps: int = Field(8, ge=1, description="Denoising steps of a decision.")
    levels: int = Field(32, ge=1, description="Noise levels that demonstrations are cloned at.")
    eta: float = Field(1.0, ge=0, le=1, description="Noise of a step; 1: DDPM, 0: DDIM.")
    min_std: float = Field(0.1, gt=0, description="Smallest deviation of a sampled and of a scored step.")

    @model_validator(mode="after")
    def _enough_levels(self) -> Config:
        if self.steps > self.levels:
            raise ValueError(f"{self.steps} steps over {self.levels} noise levels; raise levels")
        return self


def make(config: Config, spec: EnvSpec, *, critic: bool, frame_stack: int = 1) -> Any:
    """The policy module for environment ``spec``, with or without its value function."""
    from rollbus_policies._generative_families import DiffusionPolicy, RefinedDiffusionPolicy

    family = RefinedDiffusionPolicy if config.refine else DiffusionPolicy
    return family(config, spec, critic=critic, frame_stack=frame_stack)
