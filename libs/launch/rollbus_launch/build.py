"""Compose services from a resolved recipe: the one place that knows how they are put together."""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_core.access import Access
from rollbus_core.checkpoints import listed, newest_whole
from rollbus_core.feed import TRAINING_TABLE
from rollbus_core.log import get_logger
from rollbus_core.paths import RunPaths
from rollbus_core.running_episodes import read_episodes, row_of
from rollbus_core.service import Service
from rollbus_launch.awaiting import AwaitingSpec, Found
from rollbus_launch.environments import env_maker, offline_spec, peer_link, worker_command
from rollbus_launch.policy_module import import_torch, make_policy
from rollbus_wire import lookup
from rollbus_wire.errors import ConfigError
from rollbus_wire.limits import MAX_FRAME_BYTES
from rollbus_wire.link import Link, local_pair
from rollbus_wire.own_code import guard
from rollbus_wire.zmq_link import ZmqLink

#: The policy of a run; further ones (opponents, teachers) would get slots of their own.
POLICY = "policy"
ACTION_NOISE = "action-noise"


class Stopped(Exception):
    """The process was asked to stop while it was still being built."""


def services(
    roles: Sequence[str],
    index: int,
    resolved: Any,
    paths: RunPaths,
    access: Access,
    should_stop: Callable[[], bool],
) -> list[Service]:
    """The services of one process, in the order in which they are polled."""
    fused = "hub" in roles and "actor" in roles
    context = _Context(resolved, paths, index, access, should_stop, fused)
    return [_BUILDERS[role](context) for role in roles]


@dataclass
class _Context:
    """What the builders of one process share."""

    resolved: Any
    paths: RunPaths
    index: int
    access: Access
    should_stop: Callable[[], bool]
    #: Hub and actor share this process and talk over a local link.
    fused: bool
    actor_end: Link | None = None
    #: What the registry is told of the hub in this process.
    hub_endpoint: str = ""

    @property
    def recipe(self) -> Any:
        return self.resolved.recipe

    def link(self, role: str, endpoint: str, producer: str = "") -> ZmqLink:
        """Dial a service of this run. All links of one service name the same ``producer``."""
        return self.access.connect(role, endpoint, self.paths.run_id, producer, self.index)

    def bind(self, plane: str, endpoint: str, max_frame_bytes: int = MAX_FRAME_BYTES) -> ZmqLink:
        """Listen for the messages of ``plane``."""
        return self.access.bind(plane, endpoint, self.paths.run_id, self.index, max_frame_bytes)


def _broker(context: _Context) -> Service:
    from rollbus_broker.broker import Broker

    recipe, paths = context.recipe, context.paths
    return Broker(
        paths, recipe.broker, bind=context.bind, refusals=context.access.refusals,
        log=get_logger(paths, "broker-0"), audit=paths.audit if recipe.run.audit else None,
    )  # fmt: skip


def _hub(context: _Context) -> Service:
    from rollbus_simulator.episodes import GroupEpisodes, TrainingEpisodes
    from rollbus_simulator.hub import Hub

    recipe, paths, index = context.recipe, context.paths, context.index
    env, seed, group_size = recipe.env, recipe.run.seed, context.resolved.feed.group_size
    rows, slices = env.num_envs // env.hubs, env.num_slices // env.hubs
    first = index * rows
    running = running_episodes(recipe, paths, first, rows)
    # A deterministic run that has no checkpoint yet begins anew, whoever was killed, with the same episodes.
    incarnation = 0 if recipe.run.deterministic else None
    bound = context.bind("data", paths.hub_data(index))
    context.hub_endpoint = bound.endpoint
    data: list[Link] = [bound]
    if context.fused:
        hub_end, context.actor_end = local_pair(paths.run_id)
        data.append(hub_end)
    return Hub(
        f"hub-{index}", index, env,
        make_env=env_maker(env),
        worker_command=worker_command(env, paths.run_id),
        num_rows=rows, num_slices=slices, row_offset=first,
        episodes=GroupEpisodes(seed, group_size, first, incarnation, running) if group_size
        else TrainingEpisodes(seed, first, incarnation, running),
        data_links=data,
        peer_link=peer_link(
            env.placement, env.listen or paths.hub_peers(index), lambda address: context.bind("peer", address)
        ),
        registry=context.link("hub", paths.registry), run_id=paths.run_id,
        log=get_logger(paths, f"hub-{index}"), memory=paths.runtime, refusals=context.access.refusals,
        starts=training_starts(recipe, paths, index), worker_restarts=recipe.deploy.restarts,
    )  # fmt: skip


def training_starts(recipe: Any, paths: RunPaths, index: int) -> Any:
    """What episodes of hub ``index`` begin with; what was learned goes on where the learner does."""
    from rollbus_simulator.options.base import make
    from rollbus_simulator.starts import Starts

    source = make(recipe.env.options)
    if source is None:
        return None
    goes_on = recipe.run.resume != "never" and bool(listed(paths.checkpoints))
    return Starts(
        source,
        recipe.env.options,
        record=paths.starts(index),
        kept=paths.option_state(index),
        restore=goes_on,
    )


def running_episodes(recipe: Any, paths: RunPaths, first: int, num: int) -> dict[int, np.ndarray]:
    """What rows ``first`` to ``first + num`` of a deterministic run go on with: episode -> actions."""
    if not recipe.run.deterministic or recipe.run.resume == "never" or not listed(paths.checkpoints):
        return {}
    path, _ = newest_whole(paths.checkpoints)
    return {e: actions for e, actions in read_episodes(path).items() if first <= row_of(e) < first + num}


def _actor(context: _Context, found: Found) -> Service:
    from rollbus_actor.actor import Actor
    from rollbus_actor.engines.base import make_engine
    from rollbus_actor.expert import WithExpert
    from rollbus_actor.sent_log import SentLog
    from rollbus_core.slabs import SlabFolder
    from rollbus_core.weights.relay import WeightRelay
    from rollbus_core.weights.shm import WeightReader

    recipe, paths, producer = context.recipe, context.paths, secrets.token_hex(8)
    import_torch(recipe.actor.threads, recipe.run.deterministic, recipe.run.seed)
    policy = make_policy(recipe, found.spec, critic="value" in context.resolved.feed.extras)
    settings, slot = recipe.actor, paths.weights(POLICY)
    weights: Any = WeightReader(slot)
    slabs: SlabFolder | None = SlabFolder(paths.store if recipe.broker.fsync else paths.runtime)
    if not found.same_memory:  # weights come through the host's relay, chunks go with their commits
        weights, slabs = WeightRelay(slot, lambda endpoint: context.link("actor", endpoint)), None
    feed, engine = context.resolved.feeds[TRAINING_TABLE], make_engine(
        settings.engine, policy, device=settings.device, threads=settings.threads,
        options=settings.engine_options, exact=recipe.run.deterministic,
    )  # fmt: skip
    if feed.expert is not None:
        engine = WithExpert(engine, policy, found.spec, feed.expert)
    return Actor(
        f"actor-{context.index}", settings, engine=engine, policy_spec=policy.spec, feed=feed,
        seed=recipe.run.seed,
        noise_stream=ACTION_NOISE, mode="sample", deterministic=recipe.run.deterministic,
        registry=context.link("actor", paths.registry, producer),
        store=context.link("actor", paths.store_endpoint, producer), slabs=slabs, weights=weights,
        connect=lambda endpoint: _connect(context, endpoint), memory=paths.runtime,
        audit=SentLog(paths.audit, producer) if recipe.run.audit else None,
    )  # fmt: skip


def _connect(context: _Context, endpoint: str) -> Link:
    if context.actor_end is not None and endpoint == context.hub_endpoint:
        return context.actor_end
    return context.link("actor", endpoint)


def _learner(context: _Context, found: Found) -> Service:
    from rollbus_core.datasets.parts import sized
    from rollbus_core.weights.served import ServedWriter
    from rollbus_core.weights.shm import WeightWriter
    from rollbus_learner.checkpoint import start_from
    from rollbus_learner.learner import Learner

    recipe, paths, producer = context.recipe, context.paths, secrets.token_hex(8)
    if not found.same_memory:
        raise ConfigError(
            f"the learner does not see the memory of the broker at {paths.registry}: run both on one "
            "host, with the same --run-dir and ROLLBUS_RUNTIME_DIR (learners read chunks where the "
            "broker keeps them)"
        )
    import_torch(recipe.learner.threads, recipe.run.deterministic, recipe.run.seed)
    policy = make_policy(recipe, found.spec, critic="value" in recipe.algorithm.requires)
    if recipe.run.start_from:
        start_from(policy, Path(recipe.run.start_from))
    with guard(recipe.algorithm.name, "making the algorithm"):
        algorithm = lookup.find("rollbus_learner.algorithms", recipe.algorithm.name).make(
            recipe.algorithm, found.spec, policy, context.resolved.feed
        )
    weights: Any = WeightWriter(paths.weights(POLICY))
    if paths.weights_endpoint:
        weights = ServedWriter(weights, lambda: context.bind("weights", paths.weights_endpoint))
    return Learner(
        "learner-0", algorithm, sized(recipe.data, context.resolved.feeds), recipe, paths,
        registry=context.link("learner", paths.registry, producer),
        store=context.link("learner", paths.store_endpoint, producer),
        weights=weights, refusals=context.access.refusals,
    )  # fmt: skip


def _source(context: _Context, found: Found) -> Service:
    from rollbus_broker.sources.source import Source
    from rollbus_core.datasets.parts import parts
    from rollbus_core.slabs import SlabFolder

    recipe, paths, producer = context.recipe, context.paths, secrets.token_hex(8)
    feeds = context.resolved.feeds
    return Source(
        "source-0", found.spec, parts(recipe.data, feeds), feeds, frame_stack=recipe.env.frame_stack,
        chunk=getattr(recipe.policy, "chunk", 1), registry=context.link("source", paths.registry, producer),
        store=context.link("source", paths.store_endpoint, producer),
        slabs=SlabFolder(paths.store if recipe.broker.fsync else paths.runtime),
        log=get_logger(paths, "source-0"),
    )  # fmt: skip


def _when_spec_is_known(
    context: _Context, role: str, name: str, build: Callable[[_Context, Found], Service]
) -> Service:
    if not context.resolved.online:
        return build(context, Found(offline_spec(context.recipe), same_memory=True))
    timeout_s = 0.0 if context.recipe.env.placement == "dial_in" else context.recipe.deploy.start_timeout_s
    link = context.link(role, context.paths.registry)
    return AwaitingSpec(
        name, link, lambda found: build(context, found), timeout_s, memory=context.paths.runtime
    )  # fmt: skip


def _evaluator(context: _Context) -> Service:
    from rollbus_launch.evaluation.evaluator import Evaluator

    return Evaluator(
        f"evaluator-{context.index}", context.resolved, context.paths,
        context.link("evaluator", context.paths.registry), context.access,
    )  # fmt: skip


_BUILDERS: dict[str, Callable[[_Context], Service]] = {
    "broker": _broker,
    "hub": _hub,
    "actor": lambda context: _when_spec_is_known(context, "actor", f"actor-{context.index}", _actor),
    "learner": lambda context: _when_spec_is_known(context, "learner", "learner-0", _learner),
    "source": lambda context: _when_spec_is_known(context, "source", "source-0", _source),
    "evaluator": _evaluator,
}


#: What a service of each role imports when it is built, beside the plug-ins that its recipe names.
_MODULES = {
    "broker": ("rollbus_broker.broker",),
    "source": ("rollbus_broker.sources.source",),
    "hub": ("rollbus_simulator.hub",),
    "actor": (
        "torch",
        "rollbus_actor.actor",
        "rollbus_core.weights.shm",
    ),
    "learner": ("torch", "rollbus_learner.learner", "rollbus_core.weights.shm"),
    "evaluator": (
        "torch",
        "rollbus_launch.evaluation.evaluator",
        "rollbus_simulator.hub",
        "rollbus_actor.actor",
    ),
}


def preload(role: str, recipe: Any) -> None:
    """Import what a service of ``role`` imports when it is built. Nothing starts, not even a thread."""
    for name in _MODULES[role]:
        importlib.import_module(name)
    if "torch" in _MODULES[role]:
        lookup.find("rollbus_policies", recipe.policy.name)
    if role == "actor":
        for name in lookup.names("rollbus_actor.engines"):
            lookup.find("rollbus_actor.engines", name)
    if role == "learner":
        lookup.find("rollbus_learner.algorithms", recipe.algorithm.name)
