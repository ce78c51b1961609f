"""The policy service over real sockets, with an engine one can compute by hand."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollbus_actor.engines.base import Forward
from rollbus_core.version import Version
from rollbus_launch.policy_service.service import PolicyService
from rollbus_policies.base import Act, Ask, PolicySpec
from rollbus_wire.errors import DeadlineExceeded, FaultReceived
from rollbus_wire.messages import Decided, Fault, Ping, Pong
from rollbus_wire.policy_client import PolicyClient
from rollbus_wire.polling import Poller
from rollbus_wire.spec import ActionSpec, ArraySpec, EnvSpec
from rollbus_wire.zmq_link import ZmqLink

SPEC = EnvSpec(
    "toy",
    {"x": ArraySpec("float32", (2,)), "goal": ArraySpec("int64", ())},
    ActionSpec("discrete", num=[100]),
)


class Engine:
    """action = x0 + goal, plus the seed where it samples; the state counts decisions."""

    def __init__(self) -> None:
        self.version, self.passes = Version(3, 7), []

    def act(
        self, obs: Mapping[str, np.ndarray], state: np.ndarray | None, ask: Ask, seeds: np.ndarray
    ) -> Forward:
        num = len(seeds)
        self.passes.append(num)
        modes = np.array([ask.mode] * num if isinstance(ask.mode, str) else ask.mode)
        assert len(modes) == num
        x = obs["x"] if obs["x"].ndim == 2 else obs["x"].sum(1)
        action = x[:, 0].astype(np.int64) + obs["goal"].reshape(num, -1).sum(1)
        action += np.where(modes == "sample", seeds.astype(np.int64), 0)
        return Forward(Act(action, action, None if state is None else state + 1), self.version)


class Rig:
    """A service that is polled by hand."""

    def __init__(self, folder: Path, spec: PolicySpec, **options: Any) -> None:
        self.engine = Engine()
        self.link = ZmqLink.bind(f"ipc://{folder}/policy")
        self.service = PolicyService(self.link, self.engine, SPEC, spec, **options)
        self.service.start(Poller())
        self.clients = [PolicyClient(self.link.endpoint, timeout_s=5.0) for _ in range(3)]

    def poll(self, until: Callable[[], bool]) -> None:
        for _ in range(2000):
            if until():
                return
            self.service.poller.wait(0.005)
            self.service.poll()
        raise AssertionError("not reached")

    def close(self) -> None:
        self.service.stop()
        for client in self.clients:
            client.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def build(*, state: int = 0, frames: int = 1, chunk: int = 1, **options: Any) -> Rig:
        kind = "hub" if state else "none"
        spec = PolicySpec(
            ("int64", ()),
            state=kind,
            state_size=state,
            frame_stack=frames,
            chunk=chunk,  # type: ignore[arg-type]
        )
        made.append(Rig(tmp_path, spec, **options))
        return made[-1]

    yield build
    for rig in made:
        rig.close()


def obs(*rows: tuple[float, int]) -> dict[str, np.ndarray]:
    return {
        "x": np.array([[x, 0] for x, _ in rows], np.float32),
        "goal": np.array([goal for _, goal in rows], np.int64),
    }


def answered(rig: Rig, num: int) -> Callable[[], bool]:
    return lambda: rig.service.num_requests + rig.service.refused >= num


def test_a_blocking_call(make: Callable[..., Rig]) -> None:
    rig = make()
    thread = threading.Thread(target=rig.poll, args=(answered(rig, 1),))
    thread.start()
    answer = rig.clients[0].decide(obs((5.0, 1), (6.0, 2)))
    thread.join()
    assert answer.action.tolist() == [6, 8] and answer.version == [3, 7] and answer.carry is None


@pytest.mark.parametrize("chunk", [1, 3])
def test_an_answer_says_whether_it_holds_several_actions(make: Callable[..., Rig], chunk: int) -> None:
    rig = make(chunk=chunk)
    rig.clients[0].send(obs((5.0, 1)))
    threading.Event().wait(0.1)
    rig.poll(answered(rig, 1))
    _, answer = rig.clients[0].receive()
    assert isinstance(answer, Decided) and answer.chunked == (chunk > 1)


def test_who_waits_together_is_decided_together(make: Callable[..., Rig]) -> None:
    rig = make()
    sent = [
        client.send(obs(*[(10.0 * i, row) for row in range(i + 1)])) for i, client in enumerate(rig.clients)
    ]
    threading.Event().wait(0.1)
    rig.poll(answered(rig, 3))
    for i, client in enumerate(rig.clients):
        number, answer = client.receive()
        assert number == sent[i] and isinstance(answer, Decided)
        assert answer.action.tolist() == [10 * i + row for row in range(i + 1)]
    assert rig.engine.passes == [6] and rig.service.num_rows == 6


def test_a_pass_has_at_most_max_batch_rows_and_requests_stay_whole(make: Callable[..., Rig]) -> None:
    """Requests of 2, 2, 3 and 5 rows where a pass has 4: what does not fit waits, in its order."""
    rig = make(max_batch=4)
    for num in (2, 2, 3, 5):
        rig.clients[0].send(obs(*[(1.0, row) for row in range(num)]))
    threading.Event().wait(0.1)
    rig.poll(answered(rig, 4))
    assert rig.engine.passes == [4, 3, 5]


def test_with_seeds_it_samples_and_without_it_does_not(make: Callable[..., Rig]) -> None:
    rig = make()
    rig.clients[0].send(obs((1.0, 0), (2.0, 0)), seeds=np.array([10, 20], np.uint64))
    rig.clients[0].send(obs((1.0, 0)))
    threading.Event().wait(0.1)
    rig.poll(answered(rig, 2))
    assert [rig.clients[0].receive()[1].action.tolist() for _ in range(2)] == [[11, 22], [1]]  # type: ignore[attr-defined]


def test_the_carry_is_the_state_and_none_begins(make: Callable[..., Rig]) -> None:
    rig, carry = make(state=2), None
    for count in (1.0, 2.0, 3.0):
        rig.clients[0].send(obs((0.0, 0)), carry=carry)
        rig.poll(answered(rig, int(count)))
        carry = rig.clients[0].receive()[1].carry  # type: ignore[attr-defined]
        assert carry is not None and carry.view(np.float32).tolist() == [[count, count]]


def test_stacks_are_what_the_policy_sees(make: Callable[..., Rig]) -> None:
    rig = make(frames=3)
    stacked = {"x": np.ones((2, 3, 2), np.float32), "goal": np.ones((2, 3), np.int64)}
    rig.clients[0].send(stacked)
    rig.poll(answered(rig, 1))
    assert rig.clients[0].receive()[1].action.tolist() == [6, 6]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"obs": {"x": np.zeros((1, 2), np.float32)}}, r"obs\['goal'\] must be int64 \[R\], none came"),
        ({"obs": {**obs((0, 0)), "x": np.zeros((1, 3), np.float32)}}, r" float32 \[R, 2\], came .* \[1, 3\]"),
        ({"obs": {**obs((0, 0)), "x": np.zeros((1, 2))}}, "must be float32 .* came float64"),
        ({"obs": {**obs((0, 0)), "goal": np.zeros(2, np.int64)}}, "has 2 rows, other keys have 1"),
        ({"obs": obs()}, "must be float32|at least one row"),
        ({"obs": obs((0, 0)), "seeds": np.zeros(2, np.uint64)}, r"seeds must be uint64 \[1\], came .* \[2\]"),
        ({"obs": obs((0, 0)), "carry": np.zeros((1, 4), np.uint8)}, r"carry must be uint8 \[1, 8\]"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_and_the_others_are_not(
    make: Callable[..., Rig], request_: dict[str, Any], text: str
) -> None:
    rig = make(state=2)
    wrong, right = rig.clients[:2]
    wrong.send(**request_)
    right.send(obs((4.0, 0)))
    rig.poll(lambda: rig.service.refused == 1 and rig.service.num_requests == 1)
    number, fault = wrong.receive()
    assert isinstance(fault, Fault) and fault.code == "spec" and number == 1
    assert re.search(text, fault.text), fault.text
    assert right.receive()[1].action.tolist() == [4]  # type: ignore[attr-defined]


def test_a_refusal_is_raised_by_the_blocking_call(make: Callable[..., Rig]) -> None:
    rig = make()
    thread = threading.Thread(target=rig.poll, args=(lambda: rig.service.refused == 1,))
    thread.start()
    with pytest.raises(FaultReceived, match="none came"):
        rig.clients[0].decide({})
    thread.join()


def test_a_late_answer_is_not_taken_for_the_next(make: Callable[..., Rig]) -> None:
    rig = make()
    client = rig.clients[0]
    client.timeout_s = 0.05
    with pytest.raises(DeadlineExceeded, match="no policy service answered"):
        client.decide(obs((1.0, 0)))
    client.timeout_s = 5.0
    thread = threading.Thread(target=rig.poll, args=(answered(rig, 2),))
    thread.start()
    assert client.decide(obs((2.0, 0))).action.tolist() == [2]
    thread.join()
    assert client.late == 1


def test_it_spins_only_after_a_request_and_only_if_told(make: Callable[..., Rig]) -> None:
    now = [10.0]
    rig = make(spin_s=0.5, clock=lambda: now[0])
    assert rig.service.wake_in_s() == 0.1
    rig.clients[0].send(obs((1.0, 0)))
    rig.poll(answered(rig, 1))
    assert rig.service.wake_in_s() == 0.0
    now[0] = 10.6
    assert rig.service.wake_in_s() == 0.1
    plain = PolicyService(rig.link, rig.engine, SPEC, PolicySpec(("int64", ())))
    assert plain.wake_in_s() == 0.1


def test_ping_is_answered_and_who_is_gone_is_counted(make: Callable[..., Rig]) -> None:
    rig = make()
    link = ZmqLink.connect(rig.link.endpoint)
    ping = link.send(Ping())
    rig.poll(lambda: link.socket.poll(0) > 0)
    envelope = link.recv()
    assert envelope is not None and isinstance(envelope.message, Pong) and envelope.re == ping
    rig.clients[0].send(obs((1.0, 0)))
    threading.Event().wait(0.1)
    rig.clients[0].close()
    threading.Event().wait(0.1)
    rig.poll(answered(rig, 1))
    assert rig.service.unanswered == 1
    link.close()
