"""Requests that wait: for a ticket, for a batch, for their table to be opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollbus_core.columns import Layout
from rollbus_wire.link import Envelope
from rollbus_wire.messages import Sample, TicketRequest


@dataclass
class WaitingTicket:
    """A `TicketRequest` and its layout, read once."""

    envelope: Envelope
    request: TicketRequest
    layout: Layout
    key: str


@dataclass
class WaitingSample:
    """A `Sample`."""

    envelope: Envelope
    request: Sample


class Waiting:
    """Requests per table in the order in which they came."""

    def __init__(self) -> None:
        self._tickets: dict[str, list[WaitingTicket]] = {}
        self._samples: dict[str, list[WaitingSample]] = {}

    def add_ticket(self, item: WaitingTicket) -> None:
        self._tickets.setdefault(item.request.table, []).append(item)

    def add_sample(self, item: WaitingSample) -> None:
        self._samples.setdefault(item.request.table, []).append(item)

    def tickets(self, table: str) -> list[WaitingTicket]:
        """Requests for tickets of ``table``; the list itself."""
        return self._tickets.setdefault(table, [])

    def samples(self, table: str) -> list[WaitingSample]:
        """Requests for batches of ``table``; the list itself."""
        return self._samples.setdefault(table, [])

    def tables(self) -> Iterator[str]:
        """Tables that somebody waits for."""
        return (name for name in {*self._tickets, *self._samples} if self.tickets(name) or self.samples(name))

    def forget(self, sender: str) -> None:
        """``sender`` is lost."""
        for items in self._tickets.values():
            items[:] = [item for item in items if item.envelope.sender != sender]
        for samples in self._samples.values():
            samples[:] = [item for item in samples if item.envelope.sender != sender]
