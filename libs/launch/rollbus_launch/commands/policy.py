"""``rollbus policy RUN_DIR``: serve a checkpoint's policy to robots and programs (`PolicyClient`)."""

from __future__ import annotations

import argparse
from typing import Any

from rollbus_core.config.load import load_resolved
from rollbus_launch.control import run_paths
from rollbus_launch.session import newest_checkpoint
from rollbus_wire.errors import ConfigError


def add_parser(subparsers: Any) -> None:
    """rollbus policy RUN_DIR [--checkpoint NAME] [--listen ADDRESS] [--spin-us N] [key=value ...]"""
    parser = subparsers.add_parser("policy", help="serve a checkpoint's policy", description=__doc__)
    parser.add_argument("run_dir", nargs="?", help="default: runs/latest")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="actor.engine=onnx ...")
    parser.add_argument("--checkpoint", default="", help="name under checkpoints/; default: best, else last")
    parser.add_argument(
        "--listen", default="", help="ipc://PATH or tcp://127.0.0.1:PORT; default: in RUN_DIR"
    )
    parser.add_argument(
        "--spin-us", type=float, default=0.0,
        help="after a request, look for the next one that long without sleeping; for cores to spare",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from rollbus_launch.policy_service import build
    from rollbus_launch.serve import limit_threads

    limit_threads()
    if arguments.run_dir and "=" in arguments.run_dir:
        arguments.overrides.insert(0, arguments.run_dir)
        arguments.run_dir = None
    paths = run_paths(arguments.run_dir)
    resolved = load_resolved(paths.config, arguments.overrides)
    checkpoint = (
        paths.checkpoints / arguments.checkpoint if arguments.checkpoint else newest_checkpoint(paths)
    )
    if not checkpoint.exists():
        raise ConfigError(f"{checkpoint} does not exist; the run has saved no checkpoint yet")
    listen = arguments.listen or f"ipc://{paths.policy_socket}"
    return build.serve(checkpoint.resolve(), resolved.recipe, listen, arguments.spin_us * 1e-6)
