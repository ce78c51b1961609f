"""The engine that is fastest for this policy, by a measurement on the first real batch.

All candidates share the policy's tensors, so trying one costs no copy of the weights. Deterministic runs and
evaluations take no part: `torch_local` serves them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from rollbus_actor.engines import torch_local
from rollbus_actor.engines._trunk import no_trunk
from rollbus_actor.engines._weights import WeightHolder
from rollbus_actor.engines.base import Forward, InferenceEngine, engine_config
from rollbus_core.version import Version
from rollbus_policies.base import Ask, Decoder
from rollbus_wire import lookup

EXACT = torch_local.EXACT
#: Time for measuring, all candidates together; those that need longer to start are not tried.
BUDGET_S, MAX_START_S = 0.15, 0.5
#: Passes before and at most during the measurement of one candidate.
WARM_UP, MAX_PASSES = 3, 100


class Trial(NamedTuple):
    """One candidate: its name, the options it was tried with, and time per pass or why there is none."""

    name: str
    pass_s: float
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.reason or f'{1e6 * self.pass_s:.0f} us'}"


class Engine:
    """Acts through `torch_local` until the first batch, then through the winner."""

    def __init__(
        self,
        policy: Any,
        device: str = "cpu",
        threads: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._policy, self._device, self._threads, self._clock = policy, device, threads, clock
        self._engine: Any = torch_local.Engine(policy, device, threads)
        self._chosen = self._engine.mode == "reference"
        #: What acts and why, for people.
        reason = no_trunk(policy) or "the only one for a deterministic run"
        self.choice = f"torch_local: {reason}" if self._chosen else "not chosen yet"
        self.trials: list[Trial] = []

    @property
    def policy(self) -> Any:
        """The torch module whose tensors are the weights."""
        return self._policy

    @property
    def version(self) -> Version | None:
        """The version that acts now."""
        return self._engine.version

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        """Decide for B rows; the first batch is also what candidates are measured on."""
        if not self._chosen and self._engine.version is not None:
            self._choose(lambda engine: engine.act(obs, state, ask, seeds), len(seeds))
        forward: Forward = self._engine.act(obs, state, ask, seeds)
        return forward

    def set_weights(self, version: Version, tensors: Mapping[str, np.ndarray]) -> None:
        """See `InferenceEngine`."""
        self._engine.set_weights(version, tensors)

    def pin(self, version: Version) -> None:
        """See `WeightHolder.pin`."""
        self._engine.pin(version)

    def decoder(self, want: tuple[str, ...]) -> Decoder:
        """That of `torch_local`: no other engine has one."""
        decoder: Decoder = torch_local.Engine.decoder(self._engine, want)
        return decoder

    def _choose(self, run: Callable[[InferenceEngine], Forward], num_rows: int) -> None:
        candidates = list(self._candidates())
        engines: dict[str, WeightHolder] = {}
        for name, make in candidates:
            try:
                engines[name] = self._pinned(make())
                self.trials.append(Trial(name, self._measure(run, engines[name], BUDGET_S / len(candidates))))
            except RuntimeError as error:
                # A device that cannot capture, a library that is broken: the others still serve.
                self.trials.append(Trial(name, float("inf"), f"failed: {error}"))
        self._chosen = True
        best = min(self.trials, key=lambda trial: trial.pass_s)
        if best.reason:
            # What is wrong with the batch torch_local will say itself.
            self.choice = "torch_local: " + ", ".join(map(str, self.trials))
            return
        self._engine = engines[best.name]
        others = ", ".join(str(trial) for trial in self.trials if trial is not best)
        self.choice = f"{best} for {num_rows} rows" + (f"; {others}" if others else "")

    def _pinned(self, engine: Any) -> Any:
        if engine is not self._engine:
            engine.pin(self._engine.version)
        return engine

    def _candidates(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        package = "rollbus_actor.engines"
        for name in lookup.names(package):
            module = lookup.find(package, name)
            start_s = getattr(module, "START_S", None)
            if start_s is None:
                continue
            reason = getattr(module, "declines", lambda *_: "")(self._policy, self._device)
            if not reason and start_s > MAX_START_S:
                reason = f"needs {start_s} s to start"
            if reason:
                self.trials.append(Trial(name, float("inf"), reason))
                continue
            variants = getattr(module, "variants", _only_defaults)(self._device)
            for options in variants:
                label = " ".join([name, *map(str, options.values())])
                yield label, self._maker(module, name, options)

    def _maker(self, module: Any, name: str, options: Mapping[str, Any]) -> Callable[[], Any]:
        if module is torch_local and not options:
            return lambda: self._engine
        config = engine_config(module, name, options)
        more = [] if config is None else [config]
        return lambda: module.Engine(self._policy, self._device, self._threads, *more)

    def _measure(self, run: Callable[[Any], Any], engine: Any, budget_s: float) -> float:
        for _ in range(WARM_UP):
            run(engine)
        times: list[float] = []
        until = self._clock() + budget_s
        while len(times) < MAX_PASSES and (self._clock() < until or not times):
            began = self._clock()
            run(engine)
            times.append(self._clock() - began)
        return median(times)


def _only_defaults(_: str) -> list[dict[str, Any]]:
    return [{}]
