"""The processes of `bench_soak.py`: a hub whose rows dial in, actors that decide zero, and peers.

python benchmarks/soak_processes.py hub CONNECTIONS FOLDER
python benchmarks/soak_processes.py actors ACTORS CONNECTIONS FOLDER
python benchmarks/soak_processes.py peers COUNT NAME FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import zmq

#: How often the processes write what they counted.
SAMPLE_S = 1.0


def serve_hub(connections: int, folder: Path) -> None:
    """A hub whose rows dial in; writes its counters every second."""
    from rollbus_core import service
    from rollbus_core.config.models import EnvConfig
    from rollbus_core.descriptors import raise_limits
    from rollbus_simulator.episodes import TrainingEpisodes
    from rollbus_simulator.hub import Hub
    from rollbus_wire.zmq_link import ZmqLink

    raise_limits()
    hub = Hub(
        "hub-0", 0, EnvConfig(placement="dial_in", num_envs=connections), num_rows=connections,
        num_slices=connections, episodes=TrainingEpisodes(1),
        log=Silent(), data_links=[ZmqLink.bind(f"ipc://{folder}/data")], peer_link=ZmqLink.bind(f"ipc://{folder}/peers"),
    )  # fmt: skip
    told = [0.0]

    def tell() -> None:
        if time.monotonic() - told[0] > SAMPLE_S:
            told[0] = time.monotonic()
            write(folder / "hub.json", hub.stats())

    service.run([hub], should_stop=_stop_signal(), on_turn=tell)
    write(folder / "hub.json", hub.stats())


def serve_actors(actors: int, connections: int, folder: Path) -> None:
    """Actors that decide zero for everything; each holds its share of the slices."""
    from rollbus_actor.actor import Actor
    from rollbus_core import service
    from rollbus_core.config.models import ActorConfig
    from rollbus_core.descriptors import raise_limits
    from rollbus_wire.zmq_link import ZmqLink

    raise_limits()
    made = []
    for index in range(actors):
        actor = Actor(
            f"actor-{index}", ActorConfig(), engine=Zeros(), policy_spec=Zeros.spec(), connect=ZmqLink.connect
        )
        for slice in range(index, connections, actors):
            actor.take(f"hub-0/{slice}", f"ipc://{folder}/data")
        made.append(actor)
    service.run(made, should_stop=_stop_signal())


class Silent:
    """A logger that says nothing: a thousand peers come and go."""

    def info(self, event: str, **fields: Any) -> None:
        """Drop it."""

    warning = info


class Zeros:
    """An engine without a network."""

    def __init__(self) -> None:
        from rollbus_core.version import Version

        self.version = Version(0, 1)

    @staticmethod
    def spec() -> Any:
        from rollbus_policies.base import PolicySpec

        return PolicySpec(action=("int64", ()), extras={})

    def act(self, obs: Any, state: Any, ask: Any, seeds: Any) -> Any:
        """Action 0 for every row."""
        from rollbus_actor.engines.base import Forward
        from rollbus_policies.base import Act

        action = np.zeros(len(next(iter(obs.values()))), np.int64)
        return Forward(Act(action, action, state, {}), self.version)


def serve_peers(count: int, name: str, folder: Path) -> None:
    """``count`` connections, each a peer of one row; writes the times of its ticks at the end."""
    from rollbus_core.descriptors import raise_limits
    from rollbus_envs import toy
    from rollbus_wire.messages import Goodbye
    from rollbus_wire.peer import Peer
    from rollbus_wire.zmq_link import ZmqLink

    raise_limits()
    stop, ticks = _stop_signal(), Ticks(folder / f"{name}.json")
    peers, poller = {}, zmq.Poller()
    for _ in range(count):
        link = ZmqLink.connect(f"ipc://{folder}/peers")
        peer = Peer(ticks.timed(toy.make(toy.Config(), 1)), link, name)
        peer.dial()
        poller.register(link.socket, zmq.POLLIN)
        peers[link.socket] = peer
    while not stop():
        for socket, _ in poller.poll(100):
            peers[socket].link.readable()
            peers[socket].poll()
        ticks.tell()
    for peer in peers.values():
        peer.link.send(Goodbye("the benchmark ends"))
        peer.link.close()
    ticks.tell(last=True)


class Ticks:
    """Times between steps of every row of this process; a file says how many there were so far."""

    def __init__(self, path: Path) -> None:
        self._path, self._times, self._last, self._told = path, [], {}, 0.0
        self.steps = 0

    def timed(self, env: Any) -> Any:
        """``env``, whose steps are timed."""
        step, key = env.step, object()

        def timed(*arguments: Any) -> Any:
            now = time.perf_counter()
            if key in self._last:
                self._times.append((now, now - self._last[key]))
            self._last[key] = now
            self.steps += 1
            return step(*arguments)

        env.step = timed
        return env

    def tell(self, *, last: bool = False) -> None:
        """Write the count now and then; the times at the end."""
        now = time.monotonic()
        if last or now - self._told > SAMPLE_S / 4:
            self._told = now
            write(self._path, {"steps": self.steps, "times": self._times if last else []})


def _stop_signal() -> Any:
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    return lambda: bool(came)


def write(path: Path, data: dict[str, Any]) -> None:
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(data))
    os.replace(partial, path)


SERVE = {"hub": serve_hub, "actors": serve_actors, "peers": serve_peers}


if __name__ == "__main__":
    kind, *words, folder = sys.argv[1:]
    SERVE[kind](*[int(word) if word.isdigit() else word for word in words], Path(folder))
