"""Requests that wait: for a ticket, for a batch, for their table to be opened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        """Requests for tickets of ``table``; the list itself, if there are any."""
        return self._tickets.get(table, [])

    def samples(self, table: str) -> list[WaitingSample]:
        """Requests for batches of ``table``; the list itself, if there are any."""
        return self._samples.get(table, [])

    @property
    def num_tickets(self) -> int:
        """Requests for tickets of all tables."""
        return sum(map(len, self._tickets.values()))

    @property
    def num_samples(self) -> int:
        """Requests for batches of all tables."""
        return sum(map(len, self._samples.values()))

    def tables(self) -> Iterator[str]:
        """Tables that somebody waits for."""
        return (name for name in {*self._tickets, *self._samples} if self.tickets(name) or self.samples(name))

    def forget(self, sender: str) -> None:
        """``sender`` is lost."""
        _forget(self._tickets, sender)
        _forget(self._samples, sender)


def _forget(items: dict[str, list[Any]], sender: str) -> None:
    for table in list(items):
        items[table] = [item for item in items[table] if item.envelope.sender != sender]
        if not items[table]:
            del items[table]
