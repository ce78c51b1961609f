"""Hub - actor - hub with a policy that answers at once, against a bare ping.

Hub and actor are the real services in two processes. A round trip is from the return of the environment's
step to the call of the next one, so it holds all that the hub does besides. The ping is a blocking DEALER and
ROUTER in two processes that carry the bytes of the observation there and those of the actions back; for
large observations it is a ping of the actions and one copy of the observation. Both alternate.

``--where`` notes the time at eight points of each round trip and prints the medians between them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from rollbus_actor.actor import Actor
from rollbus_actor.engines.base import Forward
from rollbus_core import service
from rollbus_core.config.models import ActorConfig, EnvConfig
from rollbus_core.version import Version
from rollbus_policies.base import Act, PolicySpec
from rollbus_simulator.episodes import TrainingEpisodes
from rollbus_simulator.hub import Hub
from rollbus_wire.env import Env, StepResult
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import Message
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec
from rollbus_wire.zmq_link import ZmqLink

ROWS = 64
#: Name -> (dtype, shape of one observation, round trips of one repetition).
CASES = {
    "64 x 17 float32": ("float32", (17,), 1500),
    "64 x 224 x 224 x 3 uint8": ("uint8", (224, 224, 3), 150),
}
LARGE_BYTES = 1 << 20
REPETITIONS, TARGET = 5, 1.5
WARM_UP = 0.2


class Instant(Env):
    """Steps at once; notes when each step returned and when the next one was asked for."""

    def __init__(
        self, dtype: str, shape: tuple[int, ...], times: list[float], note: Callable[[float, float], None]
    ) -> None:
        self.num_rows = ROWS
        self.spec = EnvSpec("instant", {"obs": ArraySpec(dtype, shape)}, ActionSpec("discrete", num=[4]))
        self._frames = [np.full((ROWS, *shape), i, dtype) for i in range(3)]
        self._times, self._note, self._steps, self._returned = times, note, 0, 0.0

    def reset(self, rows: np.ndarray, seeds: np.ndarray, options: Any) -> dict[str, np.ndarray]:
        return {"obs": self._frames[0]}

    def step(self, rows: np.ndarray, actions: np.ndarray, observe: bool) -> StepResult:
        now = time.perf_counter()
        if self._returned:
            self._times.append(now - self._returned)
            self._note(self._returned, now)
        self._steps += 1
        flag = np.zeros(ROWS, bool)
        result = StepResult(
            {"obs": self._frames[self._steps % 3]}, np.ones(ROWS, np.float32), flag, flag.copy()
        )
        self._returned = time.perf_counter()
        return result


class NullEngine:
    """Answers at once, having looked at the first number of each row."""

    spec = PolicySpec(action=("int64", ()))
    version = Version(0, 1)

    def act(self, obs: Any, state: Any, ask: Any, seeds: np.ndarray) -> Forward:
        action = np.zeros(len(seeds), np.int64)
        return Forward(Act(action, action, None, {}), self.version)

    def set_weights(self, version: Version, tensors: Any) -> None:
        raise NotImplementedError


#: What lies between the points of a round trip, in order; `RoundTrips` notes the first and last itself.
STAGES = (
    "hub: books the step, fills the tick", "hub: packs, sends", "ZeroMQ wakes the actor; received, unpacked",
    "actor: batch, null policy, act", "actor: packs, sends", "ZeroMQ wakes the hub; received, unpacked",
    "hub: checks the act, calls the environment",
)  # fmt: skip


class Noted(ZmqLink):
    """A link that notes when sending begins, when it is done, and when a message was received."""

    def note(self, times: np.ndarray, places: tuple[int, int, int]) -> Noted:
        """Write into ``times`` at ``places``."""
        self._times, self._places = times, places
        return self

    def send(self, message: Message, to: bytes = b"", re: int = 0, id: int = 0) -> int:
        self._times[self._places[0]] = time.perf_counter()
        sent = super().send(message, to, re, id)
        self._times[self._places[1]] = time.perf_counter()
        return sent

    def recv(self) -> Envelope | None:
        envelope = super().recv()
        if envelope is not None:
            self._times[self._places[2]] = time.perf_counter()
        return envelope


def noted_times(folder: Path) -> np.ndarray:
    """The times [8] that both processes write."""
    return np.memmap(folder / "times", np.float64, "r+" if (folder / "times").exists() else "w+", shape=(8,))


def serve_actor(endpoint: str, folder: str) -> None:
    def connect(_: str) -> Link:
        return Noted.connect(endpoint).note(noted_times(Path(folder)), (4, 5, 3))

    actor = Actor(
        "actor-0", ActorConfig(), engine=NullEngine(), policy_spec=NullEngine.spec,
        connect=connect, memory=Path(folder),
    )  # fmt: skip
    actor.take("hub-0/0", endpoint)
    service.run([actor])


def serve_echo(endpoint: str, answer_bytes: int) -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.bind(endpoint)
    answer = bytes(answer_bytes)
    while True:
        peer, _ = socket.recv_multipart()
        socket.send_multipart([peer, answer])


class RoundTrips:
    """A hub whose actor is in another process."""

    def __init__(self, folder: Path, dtype: str, shape: tuple[int, ...]) -> None:
        endpoint = f"ipc://{folder}/data"
        self._times: list[float] = []
        #: Seconds [7] of every round trip between its points, if wanted.
        self.stages: list[np.ndarray] | None = None
        env = EnvConfig(num_envs=ROWS, num_slices=1)
        self._points = noted_times(folder)
        link: Link = Noted.bind(endpoint).note(self._points, (1, 2, 6))
        self._hub = Hub(
            "hub-0", 0, env, num_rows=ROWS, num_slices=1, episodes=TrainingEpisodes(1), record=False,
            make_env=lambda _: Instant(dtype, shape, self._times, self._note),
            data_links=[link], memory=folder,
        )  # fmt: skip
        self._poller = service.Poller()
        self._hub.start(self._poller)
        self.process = start(serve_actor, endpoint, str(folder))

    def _note(self, returned: float, called: float) -> None:
        """A round trip began when a step ``returned`` and ends as the next one is ``called``."""
        self._points[0], self._points[7] = returned, called
        if self.stages is not None:
            self.stages.append(np.diff(self._points))

    def measure(self, num: int) -> float:
        """Median seconds of ``num`` round trips."""
        self._times.clear()
        while len(self._times) < num:
            if not self._hub.poll():
                self._poller.wait(self._hub.wake_in_s())
        return statistics.median(self._times[int(num * WARM_UP) :])


class Pings:
    """A blocking DEALER and an echo in another process."""

    def __init__(self, folder: Path, num_bytes: int) -> None:
        endpoint = f"ipc://{folder}/echo"
        self.process = start(serve_echo, endpoint, 8 * ROWS)
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(endpoint)
        self._large = num_bytes >= LARGE_BYTES
        self._source, self._target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)
        self._message = bytes(8 * ROWS if self._large else num_bytes)

    def measure(self, num: int) -> float:
        """Median seconds of ``num`` pings."""
        times = []
        for _ in range(num):
            start_s = time.perf_counter()
            if self._large:
                np.copyto(self._target, self._source)
            self._socket.send(self._message)
            self._socket.recv()
            times.append(time.perf_counter() - start_s)
        return statistics.median(times[int(num * WARM_UP) :])


def start(body: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=body, args=arguments, daemon=True)
    process.start()
    return process


def run(name: str, dtype: str, shape: tuple[int, ...], num: int, repetitions: int, where: bool) -> None:
    """Print the medians of the repetitions and, with ``where``, of the stages."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        num_bytes = ROWS * int(np.prod(shape)) * np.dtype(dtype).itemsize
        pings = Pings(Path(folder), num_bytes)
        trips = RoundTrips(Path(folder), dtype, shape)
        trips.stages = [] if where else None
        pairs = [(trips.measure(num), pings.measure(num)) for _ in range(repetitions)]
        for process in (pings.process, trips.process):
            process.kill()
            process.join()
    ours, ping = (1e6 * statistics.median(values) for values in zip(*pairs, strict=True))
    print(
        f"{name}: round trip p50 {ours:.0f} us, ping p50 {ping:.0f} us, ratio {ours / ping:.2f} (<= {TARGET})"
    )
    if trips.stages:
        for stage, seconds in zip(STAGES, np.median(trips.stages, axis=0), strict=True):
            print(f"  {1e6 * seconds:4.0f} us  {stage}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--where", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    for name in options.case or CASES:
        run(name, *CASES[name], options.repetitions, options.where)


if __name__ == "__main__":
    main()
