"""A label that a policy is told beside its observations, so that one network has learned good and poor ways.

It is one more observation, a class. What acts or is scored without one is told `GOOD`.
Importing this needs no torch.
"""

from __future__ import annotations

from dataclasses import replace

from rollbus_wire.spec import ArraySpec, EnvSpec

#: The observation's name, and its classes.
CONDITION = "condition"
UNKNOWN, POOR, GOOD = 0, 1, 2


def with_condition(spec: EnvSpec) -> EnvSpec:
    """``spec`` with the label as an observation of the policy."""
    observation = spec.observation | {CONDITION: ArraySpec("int64", (), 0, GOOD, layout="onehot")}
    groups = dict(spec.groups)
    if "policy" in groups:
        groups["policy"] = [*groups["policy"], CONDITION]
    return replace(spec, observation=observation, groups=groups)
