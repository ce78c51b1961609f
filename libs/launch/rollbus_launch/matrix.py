"""Which policy fits which algorithm on which actions: every pair is built, what does not fit says why.

``python -m rollbus_launch.matrix --write`` renews docs/support.md; ``--check`` fails if it is not up to date.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rollbus_core.config.checks import misfits
from rollbus_wire import lookup
from rollbus_wire.errors import RollbusError
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

POLICIES, ALGORITHMS = "rollbus_policies", "rollbus_learner.algorithms"
SUPPORT = Path("docs/support.md")

_VECTOR, _IMAGE = ArraySpec("float32", (4,)), ArraySpec("uint8", (32, 32, 3), 0, 255, layout="HWC")
_CONTINUOUS = ActionSpec("continuous", (2,), low=[-1.0, -1.0], high=[1.0, 1.0])
_COMPLETION = ActionSpec("multi_discrete", (3,), num=[8] * 3, layout="tokens", end_token=1)
#: One small task per kind of action; what a policy cannot read counts as not fitting.
SPECS = {
    "discrete": EnvSpec("discrete", {"image": _IMAGE, "vector": _VECTOR}, ActionSpec("discrete", num=[4])),
    "multi_discrete": EnvSpec(
        "multi_discrete", {"image": _IMAGE, "vector": _VECTOR}, ActionSpec("multi_discrete", (2,), num=[3, 2])
    ),
    "continuous": EnvSpec("continuous", {"image": _IMAGE, "vector": _VECTOR}, _CONTINUOUS),
    "tokens": EnvSpec("tokens", {"prompt": ArraySpec("int64", (4,), 0, 7, layout="tokens")}, _COMPLETION),
}
#: Settings that are tried in turn; the first under which a pair fits is what the table names.
VARIANTS: tuple[dict[str, Any], ...] = (
    {}, {"head": "tanh_gaussian"}, {"head": "deterministic"}, {"head": "q_values"},
    {"execute": 1, "chunk": 1}, {"steer": True}, {"refine": True},
    {"sampler": "flow_noise"}, {"condition": "label"},
)  # fmt: skip


class Pair(NamedTuple):
    """One cell of the table."""

    policy: str
    algorithm: str
    action: str
    #: Settings of the policy that it needs; {}: its defaults do.
    settings: dict[str, Any]
    #: Why it does not fit; "": it does.
    reason: str


def pairs(policies: list[str] | None = None, algorithms: list[str] | None = None) -> Iterator[Pair]:
    """All pairs on all kinds of actions, or those of the given names. Needs torch."""
    for policy in policies or _settable(POLICIES):
        for algorithm in algorithms or _settable(ALGORITHMS):
            for action, spec in SPECS.items():
                yield _tried(policy, algorithm, action, spec)


def _settable(package: str) -> list[str]:
    return [name for name in lookup.names(package) if hasattr(lookup.find(package, name), "Config")]


def _tried(policy: str, algorithm: str, action: str, spec: EnvSpec) -> Pair:
    first = ""
    for settings in VARIANTS:
        fields = lookup.find(POLICIES, policy).Config.model_fields
        if not settings.keys() <= fields.keys():
            continue
        reason = _misfit(policy, algorithm, settings, spec)
        if not reason:
            return Pair(policy, algorithm, action, settings, "")
        first = first or reason
    return Pair(policy, algorithm, action, {}, first)


def _misfit(policy_name: str, algorithm_name: str, settings: dict[str, Any], spec: EnvSpec) -> str:
    """Why the pair cannot be built; "": it can."""
    plugin = lookup.find(ALGORITHMS, algorithm_name)
    try:
        policy_config = lookup.find(POLICIES, policy_name).Config(name=policy_name, **settings)
        config = plugin.Config(name=algorithm_name)
    except ValueError as error:
        return str(error).splitlines()[-1]
    for reason in misfits(policy_config, config):
        return reason
    feed = next(iter(config.feeds(num_envs=16, num_slices=2, deterministic=False).values()))
    try:
        policy = _policy(policy_config.model_dump_json(), policy_name, spec.name, "value" in config.requires)
        plugin.make(config, spec, policy, feed.offered(policy_config.offers)).roles()
    except RollbusError as error:
        return str(error)
    return ""


@lru_cache(256)
def _policy(config: str, name: str, task: str, critic: bool) -> Any:
    """A policy is built once for all algorithms; none of them changes it."""
    from rollbus_policies import base

    settings = lookup.find(POLICIES, name).Config.model_validate_json(config)
    return base.make(settings, SPECS[task], critic=critic)


def table(found: list[Pair]) -> list[str]:
    """Lines of a table of policies by algorithms: the actions that fit, "-" where none does."""
    policies = list(dict.fromkeys(pair.policy for pair in found))
    algorithms = list(dict.fromkeys(pair.algorithm for pair in found))
    lines = ["| | " + " | ".join(algorithms) + " |", "|---" * (len(algorithms) + 1) + "|"]
    for policy in policies:
        cells = [
            _cell([p for p in found if (p.policy, p.algorithm) == (policy, name)]) for name in algorithms
        ]
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return lines


def _cell(found: list[Pair]) -> str:
    return ", ".join(pair.action for pair in found if not pair.reason) or "-"


def document(found: list[Pair]) -> str:
    """docs/support.md."""
    reasons = dict.fromkeys(
        f"| {p.policy} | {p.algorithm} | {p.action} | {p.reason} |" for p in found if p.reason
    )
    needed = dict.fromkeys(
        f"| {p.policy} | {p.algorithm} | {p.action} | "
        + ", ".join(f"`policy.{key}: {value}`" for key, value in p.settings.items()) + " |"
        for p in found if p.settings
    )  # fmt: skip
    return "\n".join(
        [
            "# What fits together",
            "",
            "Generated by `python -m rollbus_launch.matrix --write` from the plug-ins themselves; "
            "`rollbus matrix` prints it for this installation. Each pair was built on a small task of each "
            "kind of action; one that is refused here is refused in the same words when a recipe names it. "
            "`tests/contracts` trains every policy and every algorithm on a fixed batch.",
            "",
            *table(found),
            "",
            "## With a setting",
            "",
            "| policy | algorithm | actions | needs |",
            "|---|---|---|---|",
            *needed,
            "",
            "## Refused",
            "",
            "| policy | algorithm | actions | why |",
            "|---|---|---|---|",
            *reasons,
            "",
        ]
    )


def main() -> int:
    """Write or check docs/support.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = document(list(pairs()))
    if arguments.write:
        SUPPORT.write_text(text)
    elif arguments.check and SUPPORT.read_text() != text:
        print(f"{SUPPORT} is not up to date: python -m rollbus_launch.matrix --write")
        return 1
    elif not arguments.check:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
