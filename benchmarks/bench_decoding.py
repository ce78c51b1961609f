"""Completions at an actor: whole passes against continuous decoding.

    python benchmarks/bench_decoding.py [--repetitions 5] [--seconds 0.8] [--json FILE]

A hub of 8 slices with 8 rows each and an actor, both real, in one thread, with an environment that verifies
at once. The policy's completions have geometric lengths with a mean of a quarter of the limit, or all of the
limit ("full"), where nothing is to be gained. A decision's latency is from the return of the environment's
step to the call of the next one for the same slice. Both ways alternate, and each has a warm-up. Time is that
of the thread, which never waits: what else runs on the machine disturbs it less.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from rollbus_wire.env import Env, StepResult
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec

SLICES, ROWS = 8, 8
PROMPT, VOCABULARY, END = 8, 32, 1
WARM_UP_S = 0.3
#: (width, depth, longest completion, share of it that the mean is).
CASES = [(64, 2, limit, 0.25) for limit in (8, 32, 64, 128)]
CASES += [(64, 2, limit, 1.0) for limit in (8, 32, 64)] + [(256, 4, 32, 0.25)]
WAYS = ("whole", "continuous")


class Verifier(Env):
    """Counts tokens, and the time that each slice's decision took."""

    def __init__(self, longest: int) -> None:
        self.num_rows = SLICES * ROWS
        self.spec = EnvSpec(
            "prompts",
            {"prompt": ArraySpec("int64", (PROMPT,), 0.0, VOCABULARY - 1.0, layout="tokens")},
            ActionSpec(
                "multi_discrete", (longest,), num=[VOCABULARY] * longest, layout="tokens", end_token=END
            ),
        )
        self._prompts = np.random.default_rng(0).integers(2, VOCABULARY, (97, self.num_rows, PROMPT))
        self._turn, self._returned = 0, np.zeros(self.num_rows)
        self.tokens, self.latencies = 0, list[float]()
        #: Time of the thread that was spent on others.
        self.away_s = 0.0

    def now(self) -> float:
        """Seconds that this loop has had."""
        return time.thread_time() - self.away_s

    def _obs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        self._turn += 1
        self._returned[rows] = self.now()
        return {"prompt": self._prompts[self._turn % 97][rows]}

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
        return self._obs(rows)

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        self.latencies.append(self.now() - self._returned[rows[0]])
        ended = actions == END
        self.tokens += int(np.where(ended.any(1), ended.argmax(1) + 1, actions.shape[1]).sum())
        flags = np.zeros(len(rows), bool)
        return StepResult(self._obs(rows), np.zeros(len(rows), np.float32), flags, flags.copy())


def policy(spec: EnvSpec, width: int, depth: int, mean: float) -> Any:
    """A token policy that ends a completion after ``mean`` tokens on average (0: never)."""
    import torch

    from rollbus_policies import tokens

    torch.manual_seed(0)
    made = tokens.make(tokens.Config(width=width, depth=depth), spec, critic=False)
    with torch.no_grad():
        made.output.weight.zero_()
        made.output.bias.zero_()
        made.output.bias[END] = math.log((VOCABULARY - 1) / (mean - 1)) if mean else -1e4
    return made


class Loop:
    """Hub and actor in this thread."""

    def __init__(self, decoding: str, width: int, depth: int, longest: int, share: float) -> None:
        from rollbus_actor.actor import Actor
        from rollbus_actor.engines.torch_local import Engine
        from rollbus_core.config.models import ActorConfig, EnvConfig
        from rollbus_core.version import Version
        from rollbus_simulator.episodes import TrainingEpisodes
        from rollbus_simulator.hub import Hub
        from rollbus_wire.link import local_pair
        from rollbus_wire.polling import Poller

        self.env, self._had_s = Verifier(longest), 0.0
        hub_end, actor_end = local_pair()
        num = SLICES * ROWS
        self.hub = Hub(
            "hub-0", 0, EnvConfig(num_envs=num, num_slices=SLICES), num_rows=num, num_slices=SLICES,
            episodes=TrainingEpisodes(1), make_env=lambda _: self.env, data_links=[hub_end], record=False,
        )  # fmt: skip
        made = policy(self.env.spec, width, depth, share * longest if share < 1 else 0.0)
        engine = Engine(made)
        engine.pin(Version(0, 1))
        self.actor = Actor(
            "actor-0", ActorConfig(decoding=decoding), engine=engine, policy_spec=made.spec,
            connect=lambda _: actor_end,
        )  # fmt: skip
        poller = Poller()
        self.hub.start(poller)
        self.actor.start(poller)
        for slice in range(SLICES):
            self.actor.take(f"hub-0/{slice}", "local")

    def measure(self, seconds: float) -> dict[str, float]:
        """Tokens per second, and latencies in milliseconds."""
        self._run(WARM_UP_S)
        self.env.tokens = 0
        self.env.latencies.clear()
        took = self._run(seconds)
        p50, p99 = np.percentile(self.env.latencies, [50, 99])
        return {"tokens_per_s": self.env.tokens / took, "p50_ms": 1e3 * p50, "p99_ms": 1e3 * p99}

    def _run(self, seconds: float) -> float:
        self.env.away_s += self.env.now() - self._had_s
        began = self._had_s
        while self.env.now() < began + seconds or not self.env.latencies:
            self.hub.poll()
            self.actor.poll()
        self._had_s = self.env.now()
        return self._had_s - began


def compare(case: tuple[int, int, int, float], repetitions: int, seconds: float) -> dict[str, Any]:
    """Medians of both ways in turns, and their ratios."""
    loops = {way: Loop(way, *case) for way in WAYS}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repetitions):
        for way in WAYS:
            found[way].append(loops[way].measure(seconds))
    result: dict[str, Any] = dict(zip(("width", "depth", "longest", "share"), case, strict=True))
    for way, each in found.items():
        result[way] = {name: statistics.median(one[name] for one in each) for name in each[0]}
    result["decode_rows"] = loops["continuous"].actor.numbers()["decode_rows"]
    result["ratio"] = {name: result["continuous"][name] / result["whole"][name] for name in result["whole"]}
    return result


def say(row: dict[str, Any]) -> None:
    whole, continuous, ratio = row["whole"], row["continuous"], row["ratio"]
    lengths = "full" if row["share"] == 1 else f"mean {row['share'] * row['longest']:g}"
    net = f"{row['depth']} x {row['width']}"
    print(
        f"{net}, at most {row['longest']:3} tokens, {lengths:7}: whole, continuous: "
        f"{whole['tokens_per_s']:.0f}, {continuous['tokens_per_s']:.0f} tokens/s "
        f"({ratio['tokens_per_s']:.2f}x, {row['decode_rows']:.1f} rows per step); "
        f"p50 {whole['p50_ms']:.1f}, {continuous['p50_ms']:.1f} ms ({ratio['p50_ms']:.2f}x); "
        f"p99 {whole['p99_ms']:.1f}, {continuous['p99_ms']:.1f} ms ({ratio['p99_ms']:.2f}x)",
        flush=True,
    )


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.8, help="of one measurement")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found = []
    for case in CASES:
        found.append(compare(case, arguments.repetitions, arguments.seconds))
        say(found[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
