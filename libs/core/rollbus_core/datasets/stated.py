"""How a data set states the rotations that an environment's spec has."""

from __future__ import annotations

from collections.abc import Mapping

from rollbus_core import extras
from rollbus_core.rotations import ACTION, Restated, restated
from rollbus_wire.errors import ConfigError, SpecError
from rollbus_wire.spec import ROTATIONS, ArraySpec, EnvSpec


def stored_as(key: str, array: ArraySpec, own: EnvSpec | None, said: Mapping[str, str]) -> ArraySpec:
    """``array``, of the environment's observation ``key`` or its action, as the data set holds it.

    ``own``: the spec that the data set has of itself; ``said``: the recipe's `rotations` of it. Raises
    `ConfigError` where the environment states rotations there and nobody says how the data set does.
    """
    known = None if own is None else own.action if key == ACTION else own.observation.get(key)
    types = [] if known is None else [each.type for each in known.rotations]
    if not types and key in said:
        types = [said[key]] * len(array.rotations)
    elif key in said and set(types) != {said[key]}:
        raise ConfigError(
            f"{key} has {', '.join(types)}, the data set says, not {said[key]}; leave {key} out of "
            "data.sources' rotations"
        )
    if not types and array.rotations:
        at = ", ".join(f"{each.start} to {each.end - 1}" for each in array.rotations)
        raise ConfigError(
            f"elements {at} of {key} are a rotation ({array.rotations[0].type}), and nobody says how the "
            f"data set states it; add rotations: {{{key}: TYPE}} to its data.sources, of "
            f"{', '.join(ROTATIONS)}"
        )
    if len(types) != len(array.rotations):
        raise ConfigError(f"{key} has {len(types)} rotations in the data set, {len(array.rotations)} here")
    try:
        return restated(array, types)
    except SpecError as error:
        raise ConfigError(f"{key}: {error}") from None


def restatement(stored: ArraySpec, array: ArraySpec) -> Restated | None:
    """From the data set's array to the environment's; None: they state the same."""
    if stored.rotations == array.rotations:
        return None
    extras.require("a data set with other rotations", ("scipy",))
    return Restated(stored, array)
