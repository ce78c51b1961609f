"""Which actor holds which slice. Pure: facts and time go in, orders come out.

Every slice of a ready hub has one holder among the ready actors; their counts differ by at most
one, and no slice moves without need. Where that leaves a choice, the actor that shares the hub's process
holds it, because no socket is between them. Symbols: a holder is the producer id of an actor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rollbus_wire.messages import Assign, Message, Release


class Offer(NamedTuple):
    """A slice that a ready hub has now."""

    hub: str
    endpoint: str
    #: The actor in the hub's own process; "" if there is none.
    near: str = ""


class Order(NamedTuple):
    """A message for one actor."""

    actor: str
    message: Message


@dataclass
class _Slice:
    offer: Offer
    holder: str = ""
    number: int = 0
    #: free | assigned (told, not confirmed) | held | releasing
    phase: str = "free"
    told: float = float("-inf")
    #: Heartbeats in a row of the holder that did not list the slice.
    unlisted: int = 0
    #: Not given to anybody before this time (the last holder's hub refused it).
    rest_until: float = float("-inf")


class Assignments:
    """All slices, their holders and the numbers of the assignments."""

    def __init__(self, boot: int, repeat_s: float) -> None:
        self.boot, self.repeat_s = boot, repeat_s
        self._slices: dict[str, _Slice] = {}
        self._last = 0
        self.moves = 0

    def holders(self) -> dict[str, str]:
        """Slice -> holder, of those that have one."""
        return {name: s.holder for name, s in self._slices.items() if s.holder}

    def listed(self, actor: str, slices: Mapping[str, str]) -> None:
        """A heartbeat of ``actor`` lists the slices that it holds, each with the endpoint of its hub.

        Another endpoint than the hub's is that of an earlier process: the holder would wait for it forever.
        """
        for name, endpoint in slices.items():
            entry = self._slices.get(name)
            if entry is None:
                # Its hub has not registered yet (the broker restarted): kept for when it does.
                entry = self._slices[name] = _Slice(Offer("", endpoint))
            if entry.phase == "free" and not entry.holder:
                entry.holder, entry.phase, entry.number = actor, "held", self._next()
            if entry.holder != actor:
                continue
            entry.unlisted = 0
            if entry.offer.endpoint == endpoint:
                if entry.phase == "assigned":
                    entry.phase = "held"
            elif entry.phase == "held":
                entry.phase, entry.told = "releasing", float("-inf")
        for name, entry in self._slices.items():
            if entry.holder == actor and entry.phase == "held" and name not in slices:
                entry.unlisted += 1
                if entry.unlisted > 1:
                    self._free(entry)

    def released(self, actor: str, name: str, assignment: Sequence[int], now: float) -> None:
        """``actor`` says that it does not hold the slice (any more)."""
        entry = self._slices.get(name)
        if entry is None or entry.holder != actor:
            return
        if entry.phase != "releasing":
            if list(assignment) != [self.boot, entry.number]:
                return
            entry.rest_until = now + self.repeat_s
        self._free(entry)

    def lost(self, actor: str) -> None:
        """``actor`` is gone: what it held is free."""
        for entry in self._slices.values():
            if entry.holder == actor:
                self._free(entry)

    def plan(
        self,
        offers: Mapping[str, Offer],
        actors: Sequence[str],
        now: float,
        *,
        leaving: Collection[str] = (),
        assign: bool = True,
    ) -> list[Order]:
        """Orders that bring the slices closer to an even spread, and repeats of unanswered ones.

        ``actors`` are the ready ones in a fixed order, ``leaving`` those that drain. Without
        ``assign`` nothing new is begun.
        """
        orders = self._follow(offers, now)
        for name, entry in self._slices.items():
            if entry.holder in leaving and entry.phase in ("assigned", "held"):
                orders.append(self._release(name, entry, now))
        if assign and actors:
            orders += self._spread(actors, now)
        orders += self._repeat(now)
        return orders

    def _follow(self, offers: Mapping[str, Offer], now: float) -> list[Order]:
        """Take over what hubs offer; a slice whose hub is gone or another process is let go."""
        orders = []
        for name, offer in offers.items():
            entry = self._slices.setdefault(name, _Slice(offer))
            known, entry.offer = entry.offer, offer
            same = known.hub == offer.hub if known.hub else known.endpoint == offer.endpoint
            if not same and entry.holder and entry.phase != "releasing":
                orders.append(self._release(name, entry, now))
        for name in [n for n in self._slices if n not in offers]:
            entry = self._slices[name]
            if not entry.holder:
                del self._slices[name]
            elif entry.offer.hub and entry.phase != "releasing":
                orders.append(self._release(name, entry, now))
        return orders

    def _spread(self, actors: Sequence[str], now: float) -> list[Order]:
        load: dict[str, list[str]] = {actor: [] for actor in actors}
        coming = 0
        for name, entry in sorted(self._slices.items()):
            if entry.phase == "releasing":
                coming += bool(entry.offer.hub)
            elif entry.holder in load:
                load[entry.holder].append(name)
        orders = self._give(load, coming, now)
        counts = {actor: len(names) for actor, names in load.items()}
        for _ in range(coming):
            least = min(actors, key=lambda a: counts[a])
            counts[least] += 1
        while max(counts.values()) - min(counts.values()) > 1:
            most = max(actors, key=lambda a: counts[a])
            least = min(actors, key=lambda a: counts[a])
            held = [n for n in load[most] if self._slices[n].phase == "held"]
            if not held:
                break
            chosen = max(held, key=lambda n: (self._gain(n, least), n))
            load[most].remove(chosen)
            counts[most] -= 1
            counts[least] += 1
            orders.append(self._move(chosen, now))
        return orders or self._exchange(load, now)

    def _give(self, load: dict[str, list[str]], coming: int, now: float) -> list[Order]:
        """Give away what is free: near while that leaves an even spread, the rest to who has least."""
        free = [
            (name, entry)
            for name, entry in sorted(self._slices.items())
            if entry.phase == "free" and entry.offer.hub and now >= entry.rest_until
        ]
        share, more = divmod(sum(map(len, load.values())) + coming + len(free), len(load))

        def has_room(actor: str) -> bool:
            """``more`` actors may have one above their share."""
            above = sum(len(names) > share for names in load.values())
            return len(load[actor]) < share + (above < more)

        orders = []
        for least in (False, True):
            for name, entry in free:
                near = entry.offer.near
                if least:
                    actor = min(load, key=lambda a: (len(load[a]), a != near))
                elif near in load and has_room(near):
                    actor = near
                else:
                    continue
                load[actor].append(name)
                orders.append(self._assign(name, entry, actor, now))
            free = [(name, entry) for name, entry in free if entry.phase == "free"]
        return orders

    def _exchange(self, load: Mapping[str, list[str]], now: float) -> list[Order]:
        """Two actors of which one holds a slice of the other's process, and gets nothing worse for it."""
        for name, entry in sorted(self._slices.items()):
            near = entry.offer.near
            if entry.phase != "held" or near == entry.holder or near not in load:
                continue
            others = [
                n for n in load[near]
                if self._slices[n].phase == "held" and self._gain(n, entry.holder) >= 0
            ]  # fmt: skip
            if others:
                best = max(others, key=lambda n: (self._gain(n, entry.holder), n))
                return [self._move(name, now), self._move(best, now)]
        return []

    def _gain(self, name: str, actor: str) -> int:
        """What is won by giving the slice to ``actor``: 1 if it gets near, -1 if it was."""
        entry = self._slices[name]
        return int(entry.offer.near == actor) - int(entry.offer.near == entry.holder)

    def _move(self, name: str, now: float) -> Order:
        self.moves += 1
        return self._release(name, self._slices[name], now)

    def _repeat(self, now: float) -> list[Order]:
        orders = []
        for name, entry in self._slices.items():
            if now - entry.told < self.repeat_s or not entry.holder:
                continue
            if entry.phase == "assigned":
                entry.told = now
                orders.append(Order(entry.holder, self._message(name, entry)))
            elif entry.phase == "releasing":
                orders.append(self._release(name, entry, now))
        return orders

    def _assign(self, name: str, entry: _Slice, actor: str, now: float) -> Order:
        entry.holder, entry.phase, entry.number, entry.told = actor, "assigned", self._next(), now
        entry.unlisted = 0
        return Order(actor, self._message(name, entry))

    def _message(self, name: str, entry: _Slice) -> Assign:
        return Assign(name, entry.offer.endpoint, [self.boot, entry.number])

    def _release(self, name: str, entry: _Slice, now: float) -> Order:
        entry.phase, entry.told = "releasing", now
        return Order(entry.holder, Release(name, [self.boot, entry.number]))

    def _next(self) -> int:
        self._last += 1
        return self._last

    @staticmethod
    def _free(entry: _Slice) -> None:
        entry.holder, entry.phase, entry.unlisted = "", "free", 0
