"""The contract of an inference engine. Importing this needs no torch.

An engine file has ``Engine(policy, device, threads)`` and, where it wants them, ``Config`` (a pydantic
model of its settings, then the fourth argument), ``declines(policy, device)`` (why it cannot serve; "" if
it can), ``START_S`` (seconds to its first pass; without it `auto` leaves the engine out),
``variants(device)`` (options worth a measurement), ``needs`` (packages) and ``EXACT`` (engine and options
that stand in where results must not depend on a choice). An actor calls an engine from one thread; weights
may be set from another one.

An ``Engine`` may also have ``decoder(want) -> rollbus_policies.base.Decoder``, with which it decides step by
step for policies that can (``policy.spec.decoding_steps``); weights are then set only while no row is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import ValidationError

from rollbus_accel.backends.base import backends, choose, resolve_device
from rollbus_core import extras
from rollbus_core.config.problems import first_problem
from rollbus_core.version import Version
from rollbus_policies.base import Act, Ask
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError, SpecError


class Forward(NamedTuple):
    """What one forward pass gives: the decisions and the version that made all of them."""

    act: Act
    version: Version


class InferenceEngine(Protocol):
    """Decides with one version at a time."""

    @property
    def version(self) -> Version | None:
        """The version that acts now; None before the first one."""
        ...

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows (arguments as in `rollbus_policies.base.Policy.act`).

        The version is read once, before the pass, and weights do not change within it.
        """
        ...

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """Copy ``tensors`` into the policy in place; from here on it is ``version``.

        ``tensors`` are views, valid during the call only.

        Raises `SpecError` naming what differs if names or shapes are not the policy's own; the old
        weights stay whole.
        """
        ...


def check_tensors(
    have: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]], version: Version
) -> None:
    """Raise `SpecError` unless ``given`` has exactly the names and shapes of ``have``."""
    missing = sorted(set(have) - set(given))
    unknown = sorted(set(given) - set(have))
    shapes = [f"{n} {list(given[n])} for {list(have[n])}" for n in have if n in given and given[n] != have[n]]
    parts = [
        f"{label}: {', '.join(names)}"
        for label, names in (("missing", missing), ("unknown", unknown), ("shapes", shapes))
        if names
    ]
    if parts:
        raise SpecError(
            f"weights {version} do not fit the actor's policy ({'; '.join(parts)}); learner and actor "
            "must build the policy from one recipe"
        )


def make_engine(
    name: str, policy: Any, *, device: str = "auto", threads: int = 0,
    options: Mapping[str, Any] | None = None, exact: bool = False,
) -> InferenceEngine:  # fmt: skip
    """The engine ``name`` (a file of this package, or the dotted path of a module) around ``policy``.

    ``device`` "auto" is the best that this machine has. ``options``: the engine's own settings. ``exact``:
    results must not depend on a choice by measurement or on another library's arithmetic. Raises
    `ConfigError`.
    """
    module = lookup.find("rollbus_actor.engines", name)
    if exact and hasattr(module, "EXACT"):
        name, options = module.EXACT
        module = lookup.find("rollbus_actor.engines", name)
    place = _resolved(device)
    config = engine_config(module, name, options or {})
    engine: InferenceEngine = module.Engine(policy, place, threads, *([] if config is None else [config]))
    return engine


def check_engine(name: str, options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the engine ``name`` lacks a package or does not know its ``options``."""
    module = lookup.find("rollbus_actor.engines", name)
    extras.require(f"engine {name!r} (auto does without)", getattr(module, "needs", ()))
    engine_config(module, name, options)


def engine_config(module: Any, name: str, options: Mapping[str, Any]) -> Any:
    """``options`` as the `Config` of an engine's ``module``; None if it has none. Raises `ConfigError`."""
    if not hasattr(module, "Config"):
        if options:
            raise ConfigError(
                f"actor.engine_options {sorted(options)}: engine {name!r} has no settings; set "
                "actor.engine to the engine that they belong to, or remove them"
            )
        return None
    try:
        return module.Config(**options)
    except ValidationError as error:
        known = ", ".join(module.Config.model_fields)
        raise ConfigError(
            f"actor.engine_options.{first_problem(error)}; engine {name!r} knows {known}"
        ) from None


def _resolved(device: str) -> str:
    kind = device.partition(":")[0]
    if device == "auto":
        return resolve_device(device, choose())
    usable = [b for b in backends() if b.device == kind and b.available()[0]]
    return resolve_device(device, usable[0] if usable else choose("cpu"))
