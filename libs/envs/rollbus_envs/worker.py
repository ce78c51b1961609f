"""Serve one environment plug-in to a hub: ``python -m rollbus_envs.worker NAME CONFIG_JSON ENDPOINT``.

A hub starts this with placement "workers". It ends with its parent.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import os
import signal
import sys
from typing import Any, Callable, Dict, Optional, Sequence

from rollbus_wire import lookup
from rollbus_wire.env import Env
from rollbus_wire.errors import ConfigError, RollbusError
from rollbus_wire.own_code import guard
from rollbus_wire.peer import run_env
from rollbus_wire.places import write_stacks

_PR_SET_PDEATHSIG = 1


def maker(name: str, settings: Dict[str, Any]) -> Callable[[int], Env]:
    """A function of the number of rows that makes the environment of plug-in ``name``."""
    module = lookup.find("rollbus_envs", name)
    try:
        config = module.Config(**settings)
    except TypeError as error:
        raise ConfigError("environment %s: settings %s: %s" % (name, settings, error)) from None

    def make(num_rows: int) -> Env:
        with guard(name, "making the environment"):
            env: Env = module.make(config, num_rows)
        return env

    return make


def make_env(name: str, settings: Dict[str, Any], num_rows: int) -> Env:
    """The environment that plug-in ``name`` makes of ``settings``."""
    return maker(name, settings)(num_rows)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends (Linux; elsewhere nothing happens).

    SIGKILL, because a simulator that hangs in native code handles no other signal.
    """
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the hub ended before its worker began")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Command line; 1 if the environment cannot be made or the hub refuses it."""
    parent = os.getppid()
    parser = argparse.ArgumentParser(prog="python -m rollbus_envs.worker", description=__doc__)
    parser.add_argument("name", help="environment plug-in")
    parser.add_argument("config", help="its settings as JSON")
    parser.add_argument("endpoint", help="the hub's peer endpoint")
    parser.add_argument("--num-rows", type=int, default=1)
    parser.add_argument("--run", default="", help="run id")
    given = parser.parse_args(arguments)
    die_with_parent(parent)
    write_stacks()
    # Warnings alone: the hub tells of its workers itself.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = json.loads(given.config)
        if not isinstance(settings, dict):
            raise ConfigError("CONFIG_JSON is %s, not a JSON object" % given.config)
        env = make_env(given.name, settings, given.num_rows)
        # A hub knows its workers by their process ids.
        run_env(env, given.endpoint, name="%s-%d" % (given.name, os.getpid()), run=given.run)
    except json.JSONDecodeError as error:
        print("error: CONFIG_JSON %r: %s" % (given.config, error), file=sys.stderr)
        return 1
    except RollbusError as error:
        print("error: %s" % error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
