"""A process that attaches late rewards to the chunks of a run while it trains."""

from __future__ import annotations

import secrets
import signal
from typing import Any

from rollbus_core import service
from rollbus_core.access import Access
from rollbus_core.config.load import load_resolved
from rollbus_core.config.models import RewardConfig
from rollbus_core.log import get_logger
from rollbus_core.paths import RunPaths
from rollbus_core.service import Service
from rollbus_launch.awaiting import AwaitingSpec, Found
from rollbus_launch.policy_module import import_torch
from rollbus_wire.errors import ConfigError


def annotate(paths: RunPaths, reward: RewardConfig, column: str, index: int = 0) -> int:
    """Serve until the run ends or a signal comes, then say what came of it; the exit code.

    Raises `ConfigError` if the run does not wait for ``column``, or is not active.
    """
    resolved = load_resolved(paths.config)
    wanted = [each.label for each in resolved.recipe.learner.rewards if each.kind == "late"]
    if column not in wanted:
        raise ConfigError(
            f"{paths.root} waits for no column {column!r} (but for: {', '.join(wanted) or 'none'}); its "
            f"learner.rewards must have a source late:{column}"
        )
    if not paths.held():
        raise ConfigError(f"no run is active in {paths.root}; start it first (rollbus train)")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.append(1))
    access, name = Access.from_environment(), f"annotator-{column}-{index}"
    waiting = AwaitingSpec(
        name, access.connect("annotator", paths.registry, paths.run_id, "", index),
        lambda found: _build(paths, resolved.recipe, reward, column, name, access, index, found),
        0.0, memory=paths.runtime,
    )  # fmt: skip
    service.run([waiting], should_stop=lambda: bool(asked) or not paths.runtime.exists())
    access.close()
    outcomes = getattr(waiting.service, "outcomes", {})
    print(f"{name}: " + (", ".join(f"{num} {what}" for what, num in outcomes.items()) or "nothing came"))
    return 0


def _build(
    paths: RunPaths, recipe: Any, reward: RewardConfig, column: str, name: str, access: Access, index: int,
    found: Found,
) -> Service:  # fmt: skip
    from rollbus_core.slabs import SlabFolder
    from rollbus_learner.annotator import Annotator
    from rollbus_learner.rewards import source_of

    if not found.same_memory:
        raise ConfigError(
            f"this process does not see the memory of the broker at {paths.registry}, where chunks are; "
            "annotate on its host"
        )
    import_torch(1, False, 0)
    gamma = getattr(recipe.algorithm, "gamma", None)
    source, producer = (
        source_of(reward, found.spec, gamma, "cpu", where="rollbus annotate"),
        secrets.token_hex(8),
    )

    def link(endpoint: str) -> Any:
        return access.connect("annotator", endpoint, paths.run_id, producer, index)

    return Annotator(
        name, column, source, registry=link(paths.registry), store=link(paths.store_endpoint),
        folder=SlabFolder(paths.store if recipe.broker.fsync else paths.runtime), log=get_logger(paths, name),
    )  # fmt: skip
