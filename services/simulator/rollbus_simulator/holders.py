"""Who holds a slice: assignments, fences and acts that come too late."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rollbus_simulator.shared import SharedFrames
from rollbus_wire.errors import PeerLost, RollbusError
from rollbus_wire.link import Link
from rollbus_wire.messages import Message, Tick


class StaleAssignment(RollbusError):
    """The assignment is not newer than one that was accepted before."""

    code = "stale-assignment"


class UnknownSlice(RollbusError):
    """The hub has no such slice, or not all of its rows have a peer."""

    code = "unknown-slice"


@dataclass(frozen=True)
class Holder:
    """The actor that a slice answers to."""

    link: Link
    address: bytes
    #: Where observations of ticks are put instead.
    shared: SharedFrames | None = field(default=None, compare=False)

    def send(self, message: Message, re: int = 0) -> bool:
        """Whether it could be sent."""
        if self.shared is not None and isinstance(message, Tick):
            message.place, message.obs = self.shared.put(message.tick, message.obs), {}
        try:
            self.link.send(message, to=self.address, re=re)
        except PeerLost:
            return False
        return True


class Tenure:
    """The holder of one slice and its fence, which grows with every attachment."""

    def __init__(self) -> None:
        self.holder: Holder | None = None
        self.fence = 0
        self._assignment = (0, 0)

    def take(self, holder: Holder, assignment: list[int]) -> Holder | None:
        """``holder`` takes the slice; returns the one that loses it. Raises `StaleAssignment`.

        Without a broker the assignment is (0, 0) and always accepted.
        """
        boot, number = (*assignment, 0, 0)[:2]
        if (boot, number) != (0, 0):
            if (boot, number) <= self._assignment:
                raise StaleAssignment(
                    f"assignment {boot}.{number} is not newer than {self._assignment[0]}."
                    f"{self._assignment[1]}, which the hub accepted; ask the registry again"
                )
            self._assignment = (boot, number)
        former = self.holder
        self.leave()
        self.holder = holder
        self.fence += 1
        return former if former != holder else None

    def moved(self, link: Link, address: bytes) -> None:
        """The holder has a new connection."""
        if self.holder is not None and (link, address) != (self.holder.link, self.holder.address):
            self.holder = replace(self.holder, link=link, address=address)

    def leave(self) -> None:
        """Nobody holds the slice."""
        if self.holder is not None and self.holder.shared is not None:
            self.holder.shared.close()
        self.holder = None
