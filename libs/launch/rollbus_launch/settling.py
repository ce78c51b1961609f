"""The configuration of a run whose services are started one by one: the first one settles it for all."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rollbus_core.checkpoints import write_atomic
from rollbus_core.config.load import load, load_resolved
from rollbus_core.paths import RunPaths
from rollbus_launch.changes import Change, changes
from rollbus_wire.errors import ConfigError

#: How long a service without a configuration of its own waits for another to bring it.
CONFIG_WAIT_S = 30.0
#: A line names so many settings; the others are counted.
MAX_NAMED = 4


def settle(paths: RunPaths, config: Path | None, overrides: Sequence[str]) -> None:
    """Write the run folder's resolved config if it has none; the first service that has one does.

    Where it has one, what is given here is compared with it. Raises `ConfigError` if that is of another
    task, policy or algorithm; other differences are told.
    """
    if config is None and not paths.config.exists():
        _await_config(paths)
    if paths.config.exists():
        _compare(paths, config, overrides)
        return
    assert config is not None
    resolved = load(config, overrides)
    paths.create()
    write_atomic(paths.config, resolved.to_yaml().encode())


def _await_config(paths: RunPaths) -> None:
    print(f"waits for {paths.config}, which a service started with --config writes", file=sys.stderr)
    deadline = time.monotonic() + CONFIG_WAIT_S
    while not paths.config.exists():
        if time.monotonic() > deadline:
            raise ConfigError(
                f"{paths.root} has no config.yaml after {CONFIG_WAIT_S:.0f} s: start one service of the run "
                "with --config FILE or ROLLBUS_CONFIG"
            )
        time.sleep(0.1)


def _compare(paths: RunPaths, config: Path | None, overrides: Sequence[str]) -> None:
    if config is None and not overrides:
        return
    given = load(config or paths.config, overrides, check_packages=False).recipe
    found = list(changes(load_resolved(paths.config).recipe, given))
    if not found:
        return
    what = " with ".join(filter(None, [str(config or ""), " ".join(overrides)]))
    other_run = [change for change in found if change.is_identity]
    if other_run:
        raise ConfigError(
            f"{what} is not the run in {paths.root}: {_named(other_run, len(found))} (its config.yaml); give "
            "the run folder of this recipe, or another --run-dir for a run of its own"
        )
    print(
        f"rollbus serve: {what} changes nothing, because {paths.config} is settled: "
        f"{_named(found, len(found))}; to have it resolved anew, stop all services of the run and remove "
        "that file, or use another --run-dir",
        file=sys.stderr,
    )


def _named(found: Sequence[Change], total: int) -> str:
    told = [f"{key} {new!r} here, {old!r} there" for key, old, new in found[:MAX_NAMED]]
    more = total - len(told)
    return ", ".join(told) + (f", and {more} more" if more else "")
