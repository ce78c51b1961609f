"""The hub: slices of rows on one side, actors on the other, and what an episode is in between."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog

from rollbus_core.config.models import EnvConfig
from rollbus_core.member import DEFAULT_STAGE_DEADLINE_S, Member
from rollbus_core.service import Service
from rollbus_simulator.counters import Counters, Rates
from rollbus_simulator.dial_in import awaited
from rollbus_simulator.episodes import EpisodeSource
from rollbus_simulator.failures import FailureLog, max_failed_episodes, spans
from rollbus_simulator.grants import Grants
from rollbus_simulator.holders import UnknownSlice
from rollbus_simulator.peers import LOOK_S, MANY, Peers
from rollbus_simulator.sessions import Session
from rollbus_simulator.settings import SliceSettings, split
from rollbus_simulator.shared import SharedMemory
from rollbus_simulator.slices import Slice
from rollbus_simulator.starts import Starts
from rollbus_simulator.workers import RESTARTS, Workers
from rollbus_wire.env import Env
from rollbus_wire.errors import ConfigError, PeerLost, RollbusError, SpecError
from rollbus_wire.link import Envelope, Link, local_pair
from rollbus_wire.messages import (
    Act,
    Attach,
    Detach,
    Detached,
    Fault,
    Message,
    Ping,
    Pong,
    Registered,
    SlicesChanged,
    Waiting,
)
from rollbus_wire.peer import Peer
from rollbus_wire.polling import Poller, drain
from rollbus_wire.rejects import rejected_by_plane
from rollbus_wire.spec import EnvSpec

#: A slice without any peer is given up after this long: its actor is free for others.
WITHDRAW_S = 10.0
#: The registry is told of the slices again this often: a message may have been lost.
TELL_EVERY_S = 2.0


class Hub(Service):
    """Owns ``num_rows`` rows in ``num_slices`` slices.

    Where rows come from follows ``env.placement``: inline needs ``make_env`` (rows -> batched
    environment, one per slice), workers needs ``worker_command`` ((endpoint, rows) -> argv of a
    process that dials in) and ``peer_link``, dial_in needs ``peer_link``. ``data_links`` are the
    bound ends that actors dial; ``endpoint`` is what the registry tells them, by default the
    address of the first one that has any. ``row_offset`` is the global index of row 0. With a
    ``registry`` episodes begin once it has told the hub's incarnation. ``memory``: a folder for slabs of
    large observations, which actors that see the same folder map. ``refusals`` counts those who were not let
    in, as "plane/reason/role". ``starts``: what episodes begin with; None: reset gets no options.
    """

    role = "hub"

    def __init__(
        self, name: str, index: int, env: EnvConfig, *, num_rows: int, num_slices: int,
        episodes: EpisodeSource, data_links: Sequence[Link], row_offset: int = 0,
        make_env: Callable[[int], Env] | None = None,
        worker_command: Callable[[str, int], Sequence[str]] | None = None,
        peer_link: Link | None = None, registry: Link | None = None, record: bool = True,
        run_id: str = "", endpoint: str = "", log: Any = None, memory: Path | None = None,
        clock: Callable[[], float] = time.monotonic, refusals: Callable[[], dict[str, int]] = dict,
        starts: Starts | None = None, worker_restarts: int = RESTARTS,
    ) -> None:  # fmt: skip
        super().__init__(name)
        if not 1 <= num_slices <= num_rows:
            raise ConfigError(
                f"hub {name}: {num_rows} rows cannot be {num_slices} slices; every slice needs a row "
                "(env.num_envs, env.num_slices, env.hubs)"
            )
        self.index, self.row_offset, self.run_id = index, row_offset, run_id
        self.env, self.episodes, self.counters, self._starts = env, episodes, Counters(), starts
        self.slices: dict[str, Slice] = {}
        #: Another hub will follow at the address of the peers: they are asked to stay.
        self.followed = False
        self._sizes, self._max_failed = split(num_rows, num_slices), max_failed_episodes(num_rows)
        self._settings = SliceSettings(
            env.time_limit, env.action_repeat, env.frame_stack, env.tick_deadline_s, record
        )
        self._make_env, self._worker_command, self._restarts = make_env, worker_command, worker_restarts
        self._data_links, self._peer_link = list(data_links), peer_link
        self._registry, self._clock, self._not_let_in = registry, clock, refusals
        self._log = log if log is not None else structlog.get_logger("hub")
        self._rates, self._refusals = Rates(self.counters, clock), FailureLog(self._log)
        self._peers = Peers(self, self.counters, env.rotations, timeout_s=env.step_timeout_s, log=self._log)
        self._workers: Workers | None = None
        self._envs: list[Env] = []
        self._told: list[str] = []
        self._grants = Grants(name, self.slices, self.slice_names, SharedMemory(memory, index))
        #: Of one turn of the loop.
        self._longest_s = 0.0
        self._look_at = self._tell_at = 0.0
        self.endpoint = endpoint or next(
            (e for e in (getattr(link, "endpoint", "") for link in self._data_links) if e), "local"
        )

    # --- service ---------------------------------------------------------------------------

    def start(self, poller: Poller) -> None:
        super().start(poller)
        for link in self._data_links:
            poller.add(link)
        if self._registry is not None:
            poller.add(self._registry)
            self.member = Member(
                self._registry, self.role, self.name, stats=self.stats,
                state=lambda: self.state, on_registered=self._registered,
            )  # fmt: skip
        else:
            self.episodes.open(0)
        if self._peer_link is not None:
            poller.add(self._peer_link)
            self._peers.add(self._peer_link)
        if self.env.placement == "inline":
            self._start_inline()
        elif self.env.placement == "workers":
            self._start_workers()
        elif self._peer_link is None:
            raise ConfigError(f"hub {self.name}: placement dial_in needs an address for peers")

    def poll(self) -> bool:
        began = self._clock()
        busy = self._poll_registry()
        for link in self._data_links:
            for envelope in drain(link):
                busy = True
                self._heard(link, envelope)
                self._peers.serve()  # environments in this process step at once
        busy |= (self._workers is not None and self._workers.poll()) | self._peers.poll()
        self._end_if_broken()
        if self._settings.tick_deadline_s:
            for each in self.slices.values():
                if each.wake_in_s() <= 0:
                    busy |= each.advance()
        self._tell_slices(began)
        if busy:
            took = self._clock() - began
            self.counters.busy_s += took
            if took > self._longest_s + 0.1:
                self._longest_s = took
        return busy

    def wake_in_s(self) -> float:
        wake = math.inf
        if self._settings.tick_deadline_s:
            wake = min((each.wake_in_s() for each in self.slices.values()), default=math.inf)
        if self._workers is not None and self._workers.probing:
            wake = min(wake, 0.01)
        return min(wake, 0.1)

    def drain(self) -> None:
        """Take the slices from their holders; nothing else is begun."""
        for each in self.slices.values():
            each.close("the hub stops")
        self.state = "stopped"

    def stop(self) -> None:
        """Close peers, environments, workers and links. What hangs is killed."""
        if self.member is not None:
            self.member.leave("stopped")
        self._peers.close("the hub stops", again=self.followed)
        for each in self.slices.values():
            each.tenure.leave()
        for env in self._envs:
            env.close()
        if self._workers is not None:
            self._workers.stop()
        for end in (self._starts, *self._data_links, self._peer_link, self._registry):
            if end is not None:
                end.close()

    # --- what the registry and people see ----------------------------------------------------

    @property
    def spec(self) -> EnvSpec | None:
        """The environment's spec, once a peer has told it."""
        return self._peers.conventions.seen if self._peers.conventions else None

    @property
    def slice_names(self) -> list[str]:
        """Names of all slices, also of those whose rows have no peers yet."""
        return [f"{self.name}/{index}" for index in range(len(self._sizes))]

    def stats(self) -> dict[str, Any]:
        """Numbers for heartbeats: `Counters`, rates and the slices there are."""
        available = self._available()
        return {
            **self.counters.numbers(),
            **self._rates.numbers(),
            **(self._starts.numbers() if self._starts else {}),
            "slices": [each["slice"] for each in available],
            "rows": sum(each["rows"] for each in available),
            "peers": len(self._peers.sessions),
            **awaited(self.env, sum(self._sizes), self.slices, self._peer_link),
            "rejected": rejected_by_plane(data=self._data_links, peer=[self._peer_link]),
            "refused": self._not_let_in(),
        }

    def _available(self) -> list[dict[str, Any]]:
        # Learners and actors build their policy from the spec before they attach to anything.
        spec = self.spec.to_data() if self.spec else {}
        return [
            {"slice": each.name, "rows": each.num_rows, "endpoint": self.endpoint, "spec": spec}
            for each in self.slices.values()
            if each.available
        ]

    def _tell_slices(self, now: float) -> None:
        """Follow the slices that can be attached: own state, and the registry."""
        # With very many slices looking at each takes longer than all else of a turn.
        if len(self.slices) > MANY and now < self._look_at:
            return
        self._look_at = now + LOOK_S
        for each in self.slices.values():
            # Without a registry nobody would attach to it again.
            if each.empty_since and self.member and now - each.empty_since > WITHDRAW_S:
                each.withdraw()
        names = [name for name, each in self.slices.items() if each.available]
        now = self._clock()
        if names == self._told and (not names or now < self._tell_at):
            return
        self._told, self._tell_at = names, now + TELL_EVERY_S
        self._grants.grant_parked()
        if self.state == "start" and (len(names) == len(self._sizes) or self.env.placement == "dial_in"):
            self.state = "run"
        if self.member is not None:
            self.member.slices = self._available()
            if self.member.registered is not None:
                self.member.send(SlicesChanged(slices=self.member.slices))

    def _registered(self, message: Registered) -> None:
        self.episodes.open(message.incarnation)
        self._told = []  # what was true at `Register` may not be now
        for each in self.slices.values():
            each.begin_idle()

    def _poll_registry(self) -> bool:
        if self.member is None:
            return False
        self.member.failure = self._peers.failure
        self._name_stage(self.member)
        others = self.member.poll()
        for envelope in others:
            if isinstance(envelope.message, Ping):
                self.member.send(Pong())
        return bool(others)

    def _name_stage(self, member: Member) -> None:
        """Environments in this process may hold the loop: say for how long."""
        if self.env.placement == "inline" and not self.counters.steps:
            member.stage("first steps", self.env.step_timeout_s)
        else:
            member.stage("run", max(DEFAULT_STAGE_DEADLINE_S, 4 * self._longest_s))

    # --- actors ----------------------------------------------------------------------------

    def _heard(self, link: Link, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Act):
            each = self.slices.get(message.slice)
            try:
                if each is None:
                    raise UnknownSlice(f"hub {self.name} has no slice {message.slice!r}")
                each.act(message)
            except (SpecError, UnknownSlice) as error:
                self.counters.bad_acts += 1
                self._refusals.add(error.code, "act refused", slice=message.slice, text=str(error))
                self._fault(link, envelope, error, message.slice)
        elif isinstance(message, Waiting):
            self._waits(link, envelope, message)
        elif isinstance(message, Attach):
            self._grants.asked(link, envelope, message)
        elif isinstance(message, Detach):
            if message.slice in self.slices:
                self.slices[message.slice].detach(message.fence)
        elif isinstance(message, Ping):
            self._reply(link, envelope, Pong())

    def _waits(self, link: Link, envelope: Envelope, message: Waiting) -> None:
        """An actor hears nothing: its connection may be a new one, or a message was lost."""
        each = self.slices.get(message.slice)
        if each is None or message.fence != each.tenure.fence or each.tenure.holder is None:
            self._reply(link, envelope, Detached(message.slice, message.fence, "the hub has another holder"))
            return
        each.tenure.moved(link, envelope.peer)
        each.repeat()

    def _fault(self, link: Link, envelope: Envelope, error: RollbusError, where: str) -> None:
        self._reply(link, envelope, Fault(code=error.code, text=str(error), where=where))

    def _reply(self, link: Link, envelope: Envelope, message: Message) -> None:
        try:
            link.send(message, to=envelope.peer, re=envelope.id)
        except PeerLost:
            pass

    # --- peers -----------------------------------------------------------------------------

    def peer_came(self, session: Session) -> None:
        """Its free rows take empty places."""
        if not self.slices:
            self._make_slices()
        by_slice: dict[str, list[int]] = {}
        for name, place in self._empty_places()[: len(session.free)]:
            by_slice.setdefault(name, []).append(place)
        for name, places in by_slice.items():
            rows, session.free = session.free[: len(places)], session.free[len(places) :]
            self.slices[name].seat(places, session, rows)
        if self._workers is not None:
            taken = [each.first_row + p for each in self.slices.values() for p in each.seats.of(session)]
            self._workers.serves(session.name, spans(sorted(self.row_offset + row for row in taken)))

    def peer_lost(self, session: Session, reason: str) -> None:
        """Its rows end interrupted; free rows of other peers take their places."""
        # A peer that dialled in and is given up ends itself: nobody would ever bring these rows back.
        alone = self.env.placement == "dial_in" and self.episodes.endless and not self._peers.sessions
        if session.serve is not None or (session.given_up and alone):
            raise RollbusError(f"the environment in hub {self.name} cannot go on: {reason}")
        if self._workers is not None and session.hangs:
            self._workers.hang(session.name, reason)
        elif self._workers is not None and session.given_up:
            self._workers.given_up(session.name, reason)
        for each in self.slices.values():
            each.lost(session)
        for each in self.slices.values():
            each.begin_idle()  # an episode of a list that was lost may run elsewhere
        for other in self._peers.sessions:
            if other.free:
                self.peer_came(other)

    def _end_if_broken(self) -> None:
        """Training does not go on for ever with an environment that finishes no episode."""
        failed, limit = self.counters.failed_in_a_row, self._max_failed
        if failed >= limit and self.episodes.endless:
            raise RollbusError(
                f"hub {self.name}: the environment failed in {failed} episodes and none was finished "
                f"between them. The limit is {limit}: 5 per row of the hub, at least 50; no setting of it. "
                f"The last failure: {self._peers.last_failure}"
            )

    def _empty_places(self) -> list[tuple[str, int]]:
        """In the order they are filled: with workers each takes a share of every slice, so that
        all of them step at once; else one slice after the other."""
        empty = [(each.name, place) for each in self.slices.values() for place in each.seats.empty]
        return sorted(empty, key=lambda e: e[1]) if self.env.placement == "workers" else empty

    def _make_slices(self) -> None:
        assert self._peers.conventions is not None, "the first peer brought them"
        first = 0
        for name, size in zip(self.slice_names, self._sizes, strict=True):
            self.slices[name] = Slice(
                name, size, first, self._peers.conventions, self._settings, self.episodes, self.counters,
                self._clock, self._starts,
            )  # fmt: skip
            first += size

    def _start_inline(self) -> None:
        if self._make_env is None:
            raise ConfigError(f"hub {self.name}: placement inline needs an environment")
        if self.member is not None:
            self.member.stage("start environments", self.env.step_timeout_s)
        for index, size in enumerate(self._sizes):
            env = self._make_env(size)
            self._envs.append(env)
            mine, theirs = local_pair(self.run_id, (self.name, f"{self.name}-peer-{index}"))
            peer = Peer(env, theirs, f"{self.name}-env-{index}", trusting=True)
            self._peers.add(mine, serve=peer.answer)
            peer.dial()
        self._peers.poll()
        self._tell_slices(self._clock())

    def _start_workers(self) -> None:
        endpoint = getattr(self._peer_link, "endpoint", "")
        if self._worker_command is None or not endpoint:
            raise ConfigError(f"hub {self.name}: placement workers needs a command and an address")
        rows = split(sum(self._sizes), min(self.env.workers, sum(self._sizes)))
        self._workers = Workers(
            self._worker_command, endpoint, rows, peers=self._peers, log=self._log, restarts=self._restarts
        )
        self._workers.start()
