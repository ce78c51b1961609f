"""Evaluate one checkpoint: a hub and an actor in this process over a local link.

One version, pinned; an exact list of episodes; forwards padded to one fixed batch, so that the number
of environments that run at once changes nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus_core.access import Access
from rollbus_core.log import console_logger
from rollbus_core.version import Version
from rollbus_launch.environments import env_maker, peer_link
from rollbus_launch.evaluation.result import Evaluation, summarise
from rollbus_launch.policy_module import import_torch, make_policy
from rollbus_wire.link import local_pair
from rollbus_wire.spec import EnvSpec

if TYPE_CHECKING:
    from rollbus_launch.evaluation.recorder import EpisodeRecorder

EVALUATION_NOISE = "evaluation-noise"
#: Rows of every forward pass of an evaluation, however many environments run.
EVALUATION_BATCH = 32


@dataclass(frozen=True)
class Settings:
    """What is evaluated."""

    episodes: int
    #: Rows at once; does not change results.
    num_envs: int
    seed: int
    #: "deterministic" or "stochastic".
    mode: str
    #: With placement dial_in: where the environments dial in.
    listen: str = ""
    #: Takes down what happens (`rollbus collect`); its episodes have seeds that no evaluation has.
    collect: EpisodeRecorder | None = None


class Running:
    """One evaluation that is going on: ``services`` are to be polled until `done`."""

    def __init__(self, checkpoint: Path, resolved: Any, settings: Settings, access: Access) -> None:
        self.checkpoint, self.settings = checkpoint, settings
        self._pair = compose(checkpoint, resolved, settings, access)
        self.services = [self._pair.hub, self._pair.actor]

    @property
    def done(self) -> bool:
        """Whether every episode of the list has ended."""
        return bool(self._pair.episodes.done)

    def awaited(self) -> dict[str, Any]:
        """Rows that are to dial in, and those that are not here now; empty where environments are its own."""
        return {key: value for key, value in self._pair.hub.stats().items() if key.startswith("rows_")}

    def expect_another(self) -> None:
        """Environments that dialled in are asked to wait for the next evaluation."""
        self._pair.hub.followed = True

    def result(self) -> Evaluation:
        """The figures; only when `done`."""
        pair, settings = self._pair, self.settings
        return summarise(
            pair.episodes.results, spec=pair.spec, checkpoint=str(self.checkpoint),
            version=pair.version, env_steps=pair.env_steps, mode=settings.mode, seed=settings.seed,
        )  # fmt: skip


def evaluate(checkpoint: Path, resolved: Any, settings: Settings) -> Evaluation:
    """Run one evaluation in this process until it is done."""
    from rollbus_core import service

    access = Access.from_environment()
    running = Running(checkpoint, resolved, settings, access)
    service.run(running.services, should_stop=lambda: running.done, drain_s=1.0)
    access.close()
    return running.result()


@dataclass
class EvaluationPair:
    """A hub and an actor that evaluate one version."""

    hub: Any
    actor: Any
    episodes: Any
    spec: EnvSpec
    version: str
    env_steps: int


def compose(checkpoint: Path, resolved: Any, settings: Settings, access: Access) -> EvaluationPair:
    """Compose an evaluation of ``checkpoint``: no broker, no tickets, pinned weights."""
    from rollbus_actor.engines.base import make_engine
    from rollbus_actor.single_steps import single_steps
    from rollbus_core.checkpoints import load_policy_tensors, spec_of

    if "torch" not in sys.modules:
        import_torch(1, False, 0)
    recipe = resolved.recipe
    tensors, manifest = load_policy_tensors(checkpoint)
    spec = spec_of(checkpoint, manifest)
    policy = make_policy(recipe, spec, critic="value" in resolved.feed.extras)
    engine = make_engine(
        recipe.actor.engine, policy, device=recipe.actor.device, threads=1,
        options=recipe.actor.engine_options, exact=True,
    )  # fmt: skip
    engine.set_weights(Version.of(manifest["version"]), tensors)
    told = policy.spec
    if settings.collect is not None and recipe.actor.temporal_ensemble is None:
        engine, told = single_steps(engine, told)
    hub, actor, listed = listed_pair(
        recipe, settings, access, engine, told,
        mode="mode" if settings.mode == "deterministic" else "sample", fixed_batch=EVALUATION_BATCH,
        trained=spec,
    )  # fmt: skip
    return EvaluationPair(
        hub, actor, listed, spec, ".".join(map(str, manifest["version"])), manifest["env_steps"]
    )


def listed_pair(
    recipe: Any, settings: Settings, access: Access, engine: Any, policy_spec: Any, *, mode: Any,
    fixed_batch: int, trained: EnvSpec | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """A hub, an actor that decides with ``engine``, and the list of episodes they run: no broker."""
    from rollbus_actor.actor import Actor
    from rollbus_simulator.episodes import CollectedEpisodes, EpisodeList
    from rollbus_simulator.hub import Hub
    from rollbus_simulator.options.base import fixed_by_seed
    from rollbus_simulator.starts import Starts

    hub_end, watched = local_pair()
    listed = EpisodeList(settings.seed, settings.episodes)
    key = "eval.options" if settings.collect is None else "env.options"
    source = fixed_by_seed(recipe.eval.options if settings.collect is None else recipe.env.options, key)
    if settings.collect is not None:
        listed = CollectedEpisodes(settings.seed, settings.episodes, settings.collect.lost)
        watched = settings.collect.watch(watched)
        settings.collect.options = source
    dial_in = recipe.env.placement == "dial_in"
    env = recipe.env.model_copy(update={"placement": "dial_in" if dial_in else "inline"})
    hub = Hub(
        "evaluation-hub", 0, env, make_env=env_maker(env, trained), worker_command=None,
        num_rows=min(settings.num_envs, settings.episodes), num_slices=1, row_offset=0,
        episodes=listed, data_links=[hub_end],
        peer_link=peer_link(env.placement, settings.listen, lambda address: access.bind("peer", address)),
        registry=None, record=False, starts=None if source is None else Starts(source),
        log=console_logger("evaluation-hub" if settings.collect is None else "collecting-hub"),
    )  # fmt: skip
    actor = Actor(
        "evaluation-actor", recipe.actor, engine=engine, policy_spec=policy_spec, feed=None,
        seed=settings.seed, noise_stream=EVALUATION_NOISE, mode=mode,
        fixed_batch=fixed_batch, connect=lambda _: watched,
    )  # fmt: skip
    actor.take(hub.slice_names[0], "local")
    return hub, actor, listed
