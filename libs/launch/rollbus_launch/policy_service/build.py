"""Compose and run a policy service from a checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from rollbus_core import service
from rollbus_core.access import Access
from rollbus_core.version import Version
from rollbus_launch.policy_service.service import PolicyService
from rollbus_wire.link import Link


def policy_service(checkpoint: Path, recipe: Any, link: Link, spin_s: float = 0.0) -> PolicyService:
    """The service behind ``link``, a bound one; engine and device are those of the recipe's ``actor``."""
    from rollbus_actor.engines.base import make_engine
    from rollbus_core.checkpoints import load_policy_tensors, spec_of
    from rollbus_policies import base

    tensors, manifest = load_policy_tensors(checkpoint)
    spec = spec_of(checkpoint, manifest)
    # Values are for learning: the critic and its tensors stay on disk.
    policy = base.make(recipe.policy, spec, critic=False, frame_stack=recipe.env.frame_stack)
    actor = recipe.actor
    engine: Any = make_engine(
        actor.engine, policy, device=actor.device, threads=actor.threads, options=actor.engine_options
    )
    own = policy.state_dict()
    kept = {name: value for name, value in tensors.items() if name in own or not name.startswith("critic.")}
    engine.set_weights(Version.of(manifest["version"]), kept)
    return PolicyService(link, engine, spec, policy.spec, max_batch=actor.max_batch, spin_s=spin_s)


def serve(checkpoint: Path, recipe: Any, listen: str, spin_s: float = 0.0) -> int:
    """Run the service until SIGTERM or SIGINT."""
    stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(1))
    access = Access.from_environment(lambda text: print(text, flush=True))
    link = access.bind("policy", listen)
    made = policy_service(checkpoint, recipe, link, spin_s)
    version = ".".join(map(str, made.engine.version))
    print(f"policy {recipe.policy.name} version {version} of {checkpoint} at {link.endpoint}", flush=True)
    service.run([made], should_stop=lambda: bool(stop))
    access.close()
    print(
        f"{made.num_requests} requests, {made.num_rows} rows in {made.num_passes} passes; "
        f"refused {made.refused}, unanswered {made.unanswered}; engine {getattr(made.engine, 'choice', '')}"
    )
    return 0
