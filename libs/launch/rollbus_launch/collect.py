"""Collect episodes into a dataset: a hub and an actor in this process, an exact list of episodes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollbus_core import extras, service
from rollbus_core.access import Access
from rollbus_core.columns import SOURCES
from rollbus_core.config.load import Resolved, load, load_resolved
from rollbus_core.datasets.episode import Episode
from rollbus_core.datasets.features import without_expert
from rollbus_core.datasets.writer import DatasetWriter
from rollbus_launch.environments import env_spec
from rollbus_launch.evaluation.evaluate import Running, Settings, listed_pair
from rollbus_launch.evaluation.recorder import EpisodeRecorder
from rollbus_wire.errors import ConfigError, DeadlineExceeded

RANDOM, SCRIPT = "random", "script"


@dataclass
class Collected:
    """What came of it."""

    folder: str
    episodes: int
    #: Of all that were run, also those that were not kept.
    run: int
    frames: int
    mean_return: float
    success_rate: float | None
    content: str


class _Dataset:
    """The dataset that episodes go to, and figures over them."""

    def __init__(self, folder: Path, append: bool, successful_only: bool, provenance: dict[str, Any]) -> None:
        self.folder, self.append, self.successful_only = folder, append, successful_only
        self.provenance = provenance
        self.writer: DatasetWriter | None = None
        self.recorder: EpisodeRecorder
        self.returns: list[float] = []
        self.successes: list[bool | None] = []
        self.decision_steps = 1

    def add(self, episode: Episode) -> None:
        """One more episode was run."""
        self.returns.append(episode.total_reward)
        self.successes.append(episode.success)
        if self.successful_only and episode.success is None:
            raise ConfigError("--successful-only: this environment has no success signal")
        if self.successful_only and not episode.success:
            return
        if self.writer is None:
            assert self.recorder.spec is not None
            self.writer = DatasetWriter(
                self.folder, without_expert(self.recorder.spec), provenance=self.provenance,
                append=self.append, decision_steps=self.decision_steps,
            )  # fmt: skip
        self.writer.add(episode)

    def finish(self) -> Collected:
        """Make the dataset visible."""
        if self.writer is None:
            raise ConfigError(
                f"none of {len(self.returns)} episodes succeeded, so {self.folder} is not written; leave "
                "--successful-only out, or give another policy"
            )
        self.writer.finish()
        known = [bool(flag) for flag in self.successes if flag is not None]
        return Collected(
            str(self.folder), self.writer.num_episodes, len(self.returns), self.writer.num_frames,
            sum(self.returns) / len(self.returns), sum(known) / len(known) if known else None,
            self.writer.content,
        )  # fmt: skip


def collect(
    recipe: Path, overrides: list[str], policy: str, out: Path, settings: Settings, *,
    append: bool = False, successful_only: bool = False,
) -> Collected:  # fmt: skip
    """Run ``settings.episodes`` episodes with ``policy`` and write them to ``out``."""
    extras.require("collect", extras.DATASETS)
    if out.exists() and not append:
        raise ConfigError(f"{out} exists; give a new folder with --out, or --append to it")
    resolved = _resolved(recipe, overrides, policy)
    provenance = {
        "policy": policy, "seed": settings.seed, "episodes": settings.episodes,
        "successful_only": successful_only,
        "recipe": hashlib.sha256(resolved.to_yaml().encode()).hexdigest(),
    }  # fmt: skip
    data = _Dataset(out, append, successful_only, provenance)
    data.decision_steps = resolved.recipe.env.action_repeat
    recorder = data.recorder = EpisodeRecorder(settings.episodes, SOURCES.index(_source(policy)), data.add)
    settings = replace(settings, collect=recorder)
    try:
        if _is_run(policy):
            _run_policy(Path(policy), resolved, settings, provenance)
        else:
            _run_script(policy, resolved, settings)
    except BaseException:
        if data.writer is not None:
            data.writer.discard()
        raise
    return data.finish()


def _resolved(recipe: Path, overrides: list[str], policy: str) -> Resolved:
    resolved = load(recipe, overrides)
    if policy == SCRIPT and hasattr(resolved.recipe.env, "expert"):
        return load(recipe, [*overrides, "env.expert=true"])
    return resolved


def _is_run(policy: str) -> bool:
    return policy not in (RANDOM, SCRIPT) and ":" not in policy


def _source(policy: str) -> str:
    if policy == RANDOM:
        return "random"
    return "expert" if policy == SCRIPT else "policy" if _is_run(policy) else "script"


def _run_policy(run_dir: Path, resolved: Resolved, settings: Settings, provenance: dict[str, Any]) -> None:
    from rollbus_launch.control import run_paths
    from rollbus_launch.session import newest_checkpoint

    paths = run_paths(str(run_dir))
    trained = load_resolved(paths.config).recipe
    checkpoint = newest_checkpoint(paths).resolve()
    provenance["checkpoint"] = str(checkpoint)
    # The environment is that of the recipe, the policy that of the run.
    recipe = resolved.recipe.model_copy(update={"policy": trained.policy, "algorithm": trained.algorithm})
    access = Access.from_environment()
    _run(Running(checkpoint, replace(resolved, recipe=recipe), settings, access).services, settings)
    access.close()


def _run_script(policy: str, resolved: Resolved, settings: Settings) -> None:
    from rollbus_launch import scripts

    recipe = resolved.recipe
    spec = env_spec(recipe.env)
    script = (
        scripts.random(spec) if policy == RANDOM
        else scripts.expert(spec) if policy == SCRIPT
        else scripts.function(policy)
    )  # fmt: skip
    engine, access = scripts.ScriptEngine(script, spec), Access.from_environment()
    hub, actor, _ = listed_pair(
        recipe, settings, access, engine, engine.policy_spec, mode="sample", fixed_batch=0
    )
    _run([hub, actor], settings)
    access.close()


def _run(services: list[Any], settings: Settings) -> None:
    recorder = settings.collect
    assert recorder is not None
    service.run(services, should_stop=lambda: recorder.done, drain_s=1.0)
    if not recorder.done:
        raise DeadlineExceeded("the hub ended before all episodes had been run; see its log")
