"""Actors ask for slices: each is answered once, now or when its slice has all of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollbus_core.requests import Replies
from rollbus_simulator.holders import Holder, StaleAssignment, UnknownSlice
from rollbus_simulator.shared import SharedMemory
from rollbus_simulator.slices import Slice
from rollbus_wire.link import Envelope, Link
from rollbus_wire.messages import Attach, Attached, Fault


class Grants:
    """Attachments to the ``slices`` of ``hub``, which will have these ``names``."""

    def __init__(
        self, hub: str, slices: Mapping[str, Slice], names: Sequence[str], memory: SharedMemory
    ) -> None:
        self._hub, self._slices, self._names, self._memory = hub, slices, set(names), memory
        self._replies: dict[Link, Replies] = {}
        #: Those that wait until their slice has all of its rows.
        self._parked: dict[str, tuple[Link, Envelope]] = {}

    def asked(self, link: Link, envelope: Envelope, attach: Attach) -> None:
        """An actor asks for a slice."""
        if self._of(link).known(envelope):
            return
        each = self._slices.get(attach.slice)
        if attach.slice in self._names and (each is None or not each.available):
            self._parked[attach.slice] = (link, envelope)
        else:
            self._grant(each, link, envelope, attach)

    def grant_parked(self) -> None:
        """Answer those whose slice can be attached by now."""
        for name in [n for n in self._parked if n in self._slices and self._slices[n].available]:
            link, envelope = self._parked.pop(name)
            assert isinstance(envelope.message, Attach)
            self._grant(self._slices[name], link, envelope, envelope.message)

    def _grant(self, each: Slice | None, link: Link, envelope: Envelope, attach: Attach) -> None:
        replies = self._of(link)
        try:
            if each is None:
                raise UnknownSlice(f"hub {self._hub} has no slice {attach.slice!r}")
            attached = self._attach(each, link, envelope, attach)
        except (StaleAssignment, UnknownSlice) as error:
            replies.answer(envelope, Fault(code=error.code, text=str(error), where=attach.slice))
            return
        replies.answer(envelope, attached)
        each.advance()

    def _attach(self, each: Slice, link: Link, envelope: Envelope, attach: Attach) -> Attached:
        shared = self._memory.offer(each.spec, each.num_rows, attach.memory)
        try:
            attached = each.attach(Holder(link, envelope.peer, shared), attach.assignment)
        except (StaleAssignment, UnknownSlice):
            if shared is not None:
                shared.close()
            raise
        if shared is not None:
            attached.slab, attached.slab_bytes = shared.number, shared.num_bytes
        return attached

    def _of(self, link: Link) -> Replies:
        if link not in self._replies:
            self._replies[link] = Replies(link)
        return self._replies[link]
