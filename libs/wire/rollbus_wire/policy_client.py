"""Ask a policy service for actions: what a robot's own loop needs, without a hub.

with PolicyClient("ipc:///run/user/1000/policy") as policy:
    answer = policy.decide({"obs": observations})
    robot.apply(answer.action)
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Mapping, Optional, Tuple, Union

import numpy as np

from .errors import DeadlineExceeded, FaultReceived, PeerLost, SpecError, WireError
from .keys import load as load_key
from .messages import Arrays, Decide, Decided, Fault, Message
from .polling import Poller
from .roles import check_dialler
from .zmq_link import ZmqLink


class PolicyClient:
    """Dials ``endpoint``. Used by one thread; `send` and `receive` allow several requests in flight."""

    def __init__(self, endpoint: str, timeout_s: float = 5.0, key: Union[str, Path, None] = None) -> None:
        """``key``: the secret file of this client, which every address beyond loopback needs."""
        identity = load_key(key) if key is not None else None
        if identity is not None:
            check_dialler("policy", identity.name, identity.role)
        self.link = ZmqLink.connect(endpoint, key=identity)
        self.timeout_s = timeout_s
        #: Answers that came after their deadline.
        self.late = 0
        self._poller = Poller()
        self._poller.add(self.link)

    def decide(
        self, obs: Arrays, carry: Optional[np.ndarray] = None, seeds: Optional[np.ndarray] = None
    ) -> Decided:
        """Actions for the rows of ``obs``; see `Decide`.

        Raises `DeadlineExceeded`, or `FaultReceived` with what is wrong with the request.
        """
        request = self.send(obs, carry, seeds)
        deadline = time.monotonic() + self.timeout_s
        while True:
            number, answer = self._receive(deadline)
            if number != request:
                self.late += 1
            elif isinstance(answer, Fault):
                raise FaultReceived(answer.code, answer.text)
            elif isinstance(answer, Decided):
                return answer
            else:
                raise WireError("decide was answered by %s" % answer.kind)

    def send(
        self, obs: Arrays, carry: Optional[np.ndarray] = None, seeds: Optional[np.ndarray] = None
    ) -> int:
        """Ask without waiting; the number by which `receive` names the answer."""
        if not isinstance(obs, Mapping):
            raise SpecError(
                "obs is %s; give one array [rows, ...] per observation, such as {'obs': observations}"
                % type(obs).__name__
            )
        try:
            return self.link.send(Decide(obs, carry, seeds))
        except PeerLost:
            raise DeadlineExceeded(
                "%s takes no more requests; is the policy service there?" % self.link.endpoint
            ) from None

    def receive(self, timeout_s: Optional[float] = None) -> Tuple[int, Message]:
        """The next answer, `Decided` or `Fault`, and the number of its request."""
        return self._receive(time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s))

    def _receive(self, deadline: float) -> Tuple[int, Message]:
        while True:
            envelope = self.link.recv()
            if envelope is not None:
                return envelope.re, envelope.message
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceeded("no policy service answered at %s in time" % self.link.endpoint)
            self._poller.wait(left)

    def close(self) -> None:
        """Stop asking."""
        self.link.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()
