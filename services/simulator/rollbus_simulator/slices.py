"""A slice: rows that tick together, and the state machine of each of its rows.

    EMPTY -> IDLE -> RESETTING -> READY -> TICKED -> STEPPING -> READY ...
                         ^                               |
                         +------ the episode ended ------+

EMPTY: no peer has the row. IDLE: no episode to run, or its round goes on. READY: it waits for a tick.
TICKED: it waits for an act. Symbols: N rows, R selected rows, C environment steps per decision.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rollbus_core.all_rows import AllRows
from rollbus_core.rotations import Conventions
from rollbus_simulator.acts import ActCheck
from rollbus_simulator.counters import Counters
from rollbus_simulator.episodes import EpisodeSource
from rollbus_simulator.failures import ADVICE, NonFinite, where
from rollbus_simulator.frames import ALL, Frames, Rows
from rollbus_simulator.holders import Tenure
from rollbus_simulator.outcomes import OutcomeCheck, subset
from rollbus_simulator.replay import Replay
from rollbus_simulator.rounds import Round
from rollbus_simulator.running import Decided, Running, copy_of
from rollbus_simulator.seats import Seats
from rollbus_simulator.sessions import Request, Session
from rollbus_simulator.settings import SliceSettings
from rollbus_simulator.starts import Starts
from rollbus_simulator.tenancy import EMPTY, IDLE, READY, RESETTING, STEPPING, TICKED, Tenancy
from rollbus_wire.messages import Act, Arrays, Outcome, Tick


class Slice(Tenancy):
    """``num_rows`` rows; row 0 is the hub's ``first_row``."""

    def __init__(
        self, name: str, num_rows: int, first_row: int, conventions: Conventions, settings: SliceSettings,
        episodes: EpisodeSource, counters: Counters, clock: Callable[[], float] = time.monotonic,
        starts: Starts | None = None,
    ) -> None:  # fmt: skip
        self.name, self.num_rows, self.first_row = name, num_rows, first_row
        self.spec = spec = conventions.seen
        self.settings, self._episodes, self._counters, self._clock = settings, episodes, counters, clock
        self.tenure, self.tick, self._starts = Tenure(), 0, starts
        #: Whether all rows had a peer once; until `withdraw`.
        self.available = False
        #: When the last peer of any row went; 0: there is one, or there never was.
        self.empty_since = 0.0
        self._limit = min((n for n in (settings.time_limit, spec.time_limit) if n), default=0)
        self._late_observe = spec.late_observe == "exact"
        self._acts, self._check = ActCheck(name, num_rows, spec.action), OutcomeCheck(conventions)
        self.state = np.full(num_rows, EMPTY, np.int8)
        self._running = Running(num_rows, spec.reports)
        self._decided = Decided(spec, num_rows)
        self._frames = Frames(spec, num_rows, settings.frame_stack)
        self.carry: np.ndarray | None = None
        #: While rows are brought back into the middle of their episodes.
        self._replay: Replay | None = None
        #: A decision was acted on and no tick has told its outcome.
        self._pending = np.zeros(num_rows, bool)
        #: No tick yet under this fence.
        self._fresh = np.ones(num_rows, bool)
        self._any_fresh = True
        #: The outstanding tick holds all rows and none of it was answered or cut.
        self._whole_tick = False
        #: All rows are executing a decision of one step, and none was cut.
        self._single = False
        self._round = Round(num_rows, together=episodes.rounds)
        self.seats = Seats(num_rows, conventions.executed)
        self._all = AllRows(num_rows)
        self._places = self._all.rows
        self._first_ready = 0.0

    # --- seats -----------------------------------------------------------------------------

    def seat(self, places: list[int], session: Session, peer_rows: list[int]) -> None:
        """``session`` serves ``places`` with its own ``peer_rows``; their episodes begin."""
        self.seats.fill(places, session, peer_rows)
        self.empty_since = 0.0
        self.available = self.available or not self.seats.empty
        self.state[places] = IDLE
        self._episodes.seated(self.first_row, self.seats.tasks, len(self.spec.reports))
        self.begin_idle()

    def lost(self, session: Session) -> None:
        """``session`` is gone: its rows end interrupted and wait for another peer."""
        if not (places := self.seats.of(session)):
            return
        gone = np.asarray(places, np.int32)
        self._interrupt(gone)
        self.state[gone] = EMPTY
        self.seats.vacate(places)
        if len(self.seats.empty) == self.num_rows:
            self.empty_since = self._clock()
        self.advance()

    def withdraw(self) -> None:
        """No peer came for any row: the slice is there again once all rows have one."""
        self.available, self.empty_since = False, 0.0
        self.close("all of its peers are gone")

    # --- ticks and acts --------------------------------------------------------------------

    def advance(self) -> bool:
        """Send a tick if one is due; whether one was sent."""
        holder, state = self.tenure.holder, self.state
        if holder is None:
            return False
        ready = state == READY
        num_ready = np.count_nonzero(ready)
        rows: Rows = ALL
        places = self._places
        if num_ready != self.num_rows:
            if not num_ready or (state == TICKED).any():
                return False
            late = (state == RESETTING) | (state == STEPPING)
            if late.any() and not self._overdue():
                return False
            rows = places = np.flatnonzero(ready).astype(np.int32)
        self.tick += 1
        self._counters.ticks += 1
        # A holder that has lost its connection asks for it (`repeat`) when it has another one.
        holder.send(self._tick(rows, places))
        return True

    def wake_in_s(self) -> float:
        """Seconds after which `advance` may send a tick without its late rows."""
        if not self._first_ready or self.tenure.holder is None or (self.state == TICKED).any():
            return math.inf
        return max(0.0, self._first_ready + self.settings.tick_deadline_s - self._clock())

    def _overdue(self) -> bool:
        """Whether the tick closes without its late rows."""
        return 0 < self.settings.tick_deadline_s <= self._clock() - self._first_ready

    def _tick(self, rows: Rows, places: np.ndarray) -> Tick:
        if self._any_fresh:
            self._decided.clear(places[self._fresh[rows]])
            self._fresh[rows] = False
            self._any_fresh = bool(self._fresh.any())
        self._pending[rows] = False
        self.state[rows] = TICKED
        self._first_ready = 0.0
        self._whole_tick = isinstance(rows, slice)
        running = self._running
        plain = self._whole_tick and self._decided.plain is not None
        return Tick(
            self.name, self.tenure.fence, self.tick, places, self._frames.newest(rows),
            copy_of(running.episode, rows), copy_of(running.step, rows), *self._decided.fields(rows),
            seed=copy_of(running.seed, rows), plain=plain,
        )  # fmt: skip

    def act(self, act: Act) -> None:
        """Execute a decision, at most once. Raises `SpecError`, and then nothing is executed."""
        if act.fence != self.tenure.fence:
            self._counters.stale_acts += 1
            return
        whole = self._all.are(act.rows)
        places = self._places if whole else self._acts.places(act.rows)
        if act.tick != self.tick or not (whole and self._whole_tick):
            waiting = self.state[places] == TICKED
            if act.tick != self.tick or not waiting.all():
                self._refuse_again(act, places, waiting)
                return
        action = self._acts.action(act, places)
        rows: Rows = ALL if whole else places
        if act.carry is not None:
            self._keep_carry(act.carry, rows, len(places))
        queue, repeat = action if act.chunked else action[:, None], self.settings.action_repeat
        queue = np.repeat(queue, repeat, axis=1) if repeat > 1 else queue
        num_actions = queue.shape[1]
        self._whole_tick, self._single = False, whole and num_actions == 1
        self._frames.push(rows)
        self._decided.begin(rows, queue)
        self._pending[rows] = True
        self.state[rows] = STEPPING
        if self.settings.tick_deadline_s and (self.state == READY).any():
            self._first_ready = self._clock()
        if num_actions == 1:
            self.seats.ask(self, "step", places, queue[:, 0])
        else:
            self._step_queued(places)

    def _refuse_again(self, act: Act, places: np.ndarray, waiting: np.ndarray) -> None:
        """Part of an act is not awaited; the rows that do wait get theirs."""
        if act.tick != self.tick:
            self._counters.duplicate_acts += 1
            return
        cut = self._decided.interrupted[places]
        self._counters.stale_acts += int(cut.any())
        self._counters.duplicate_acts += int((~waiting & ~cut).any())
        if waiting.any():
            self._acts.action(act, places)
            if act.carry is not None:
                self._acts.carry(act.carry, len(places), None)
            carry = None if act.carry is None else act.carry[waiting]
            self.act(replace(act, rows=places[waiting], action=act.action[waiting], carry=carry))

    def _keep_carry(self, carry: np.ndarray, rows: Rows, num: int) -> None:
        kept = self.carry
        size = self._acts.carry(carry, num, None if kept is None else kept.shape[1])
        self.carry = np.zeros((self.num_rows, size), np.uint8) if kept is None else kept
        self.carry[rows] = carry

    def _step_queued(self, places: np.ndarray) -> None:
        """The next queued action on each of ``places``."""
        actions, last = self._decided.next_actions(places)
        due = self._running.step[places] + 1 >= self._limit if self._limit else last
        observe = not self._late_observe or bool((last | due).any())
        self.seats.ask(self, "step", places, actions, observe)

    # --- episodes --------------------------------------------------------------------------

    def begin_idle(self) -> None:
        """Rows without an episode take one, if there are any now."""
        idle = np.flatnonzero((self.state == IDLE) & ~self._round.waits).astype(np.int32)
        if len(idle) and self._episodes.waiting:
            self._begin(idle)

    def _begin(self, places: np.ndarray) -> None:
        """The next episode of each of ``places``, which are IDLE."""
        started = []
        replayed = {}
        for place in places:
            episode = self._episodes.next(self.first_row + int(place))
            if episode is not None:
                self._running.begin(int(place), *episode)
                started.append(place)
                replayed[int(place)] = self._episodes.taken(episode[0])
        if not started:
            return
        if any(map(len, replayed.values())):
            self._replay = Replay(self.name, replayed, self._running, self._frames, self._step_again)
        chosen = np.asarray(started, np.int32)
        if self.carry is not None:
            self.carry[chosen] = 0
        self.state[chosen] = RESETTING
        seeds, starts, first = self._running.seed[chosen], self._starts, self.first_row
        options = None
        if starts is not None:
            options = [starts.begin(first + int(p), int(s)) for p, s in zip(chosen, seeds, strict=True)]
        self.seats.ask(self, "reset", chosen, seeds, options=options)

    # --- hearing from peers ----------------------------------------------------------------

    def outcome(self, request: Request, message: Outcome) -> NonFinite | None:
        """The answer of a peer; what is not finite in it.

        Raises `SpecError` if it is not what the spec states.
        """
        num = len(request.places)
        self._check.rows(message, request.peer_rows)
        flags = self._check.flags(message, num) if request.kind == "step" else None
        success = self._check.success(message, num)
        obs = self._check.obs(message, num) if request.observed else None
        reward = flags[0] if flags else None
        finite = self._check.finite(reward, obs)
        failure = None
        if finite is not None:
            bad, good = request.part(~finite), request.part(finite)
            first = message.failure or self._check.non_finite(reward, obs, int(np.flatnonzero(~finite)[0]))
            text = f"{first} ({self.where(bad)}); {ADVICE}"
            failure = NonFinite(text, not finite.any(), message.traceback or "")
            self._counters.non_finite += 0 if message.failure else len(bad.places)
            if finite.any():
                self.outcome(good, subset(message, finite))
            self.failed(bad)
        elif flags is not None:
            if self._replay is not None:
                self._replay_on(self._replay.stepped(request.places, flags, success, obs))
            else:
                self._stepped(request.places, flags, success, obs)
        elif obs is not None and request.kind == "reset":
            rows: Rows = ALL if num == self.num_rows else request.places
            self._frames.begin(rows, obs)
            if self._replay is not None:
                self._replay_on(self._replay.go_on(request.places))
            else:
                self._make_ready(rows)
        elif obs is not None:
            self._end(request.places, obs)
        self.advance()
        return failure

    def where(self, request: Request) -> str:
        """Rows of the peer and steps of their episodes, for a text."""
        return where(request.kind, request.peer_rows, self._running.step[request.places])

    def failed(self, request: Request) -> None:
        """The environment failed: the episodes of these rows are cut and others begin."""
        self._counters.failed_in_a_row += len(request.places)
        self._interrupt(request.places)
        self._begin(request.places)

    def _step_again(self, places: np.ndarray, actions: np.ndarray) -> None:
        self.state[places] = STEPPING
        self.seats.ask(self, "step", places, actions)

    def _replay_on(self, back: np.ndarray) -> None:
        """``back`` are where they were."""
        if back.size:
            self._make_ready(back)
        if self._replay is not None and self._replay.over:
            self._replay = None

    def _make_ready(self, rows: Rows) -> None:
        self.state[rows] = READY
        if self.settings.tick_deadline_s and not self._first_ready:
            self._first_ready = self._clock()

    def _stepped(
        self, places: np.ndarray, flags: tuple[np.ndarray, np.ndarray, np.ndarray],
        success: np.ndarray | None, obs: Arrays | None,
    ) -> None:  # fmt: skip
        reward, terminated, truncated = flags
        rows: Rows = ALL if len(places) == self.num_rows else places
        decided, running = self._decided, self._running
        self._counters.steps += len(places)
        running.advance(rows, reward, success)
        if self._limit:
            truncated = truncated | (running.step[rows] >= self._limit)
        done = terminated | truncated
        num_done = np.count_nonzero(done)
        if self._single and obs is not None and isinstance(rows, slice) and num_done < len(places):
            decided.plain = reward
            self._frames.take(rows, obs)
            self._make_ready(rows)
            if not num_done:
                return
            decided.settle()
        else:
            self._go_on(rows, places, decided.step(rows, places, reward) & ~done, done, obs)
        if num_done:
            ended = places[done]
            decided.terminated[ended] = terminated[done]
            decided.truncated[ended] = (truncated & ~terminated)[done]
            if obs is None:
                self.seats.ask(self, "observe", ended)
            else:
                self._end(ended, {key: array[done] for key, array in obs.items()})

    def _go_on(
        self, rows: Rows, places: np.ndarray, more: np.ndarray, done: np.ndarray, obs: Arrays | None
    ) -> None:
        """Rows with ``more`` actions take the next one; others that are not ``done`` are ready."""
        rest = ~(done | more)
        if rest.any() and obs is not None:
            chosen: Rows = ALL if isinstance(rows, slice) and rest.all() else places[rest]
            self._frames.take(chosen, {key: array[rest] for key, array in obs.items()})
            self._make_ready(chosen)
        if more.any():
            self._step_queued(places[more])

    def _end(self, places: np.ndarray, final_obs: Arrays) -> None:
        """Episodes are over and the next ones begin."""
        tasks = self.seats.tasks
        ended = [self._running.ended(int(place), int(tasks[place])) for place in places]
        self._decided.end(places, final_obs, ended)
        for place, episode in zip(places, ended, strict=True):
            self._counters.ended(episode, self.spec)
            self._episodes.ended(self.first_row + int(place), episode)
            if self._starts is not None:
                self._starts.ended(self.first_row + int(place), episode, self.spec.success)
        self._round.end(places)
        self.state[places] = IDLE
        self.begin_idle()

    def _interrupt(self, places: np.ndarray) -> None:
        """The episodes of ``places`` are cut; no outcome of theirs is told as one."""
        for place in places:
            state = self.state[place]
            if state in (EMPTY, IDLE):
                continue
            if self._replay is not None:
                self._replay.forget(int(place))
            running, decided = self._running, self._decided
            decided.settle()
            self._whole_tick = self._single = False
            self._counters.interrupted += 1
            cut = int(running.episode[place]), int(running.seed[place])
            self._episodes.interrupted(self.first_row + int(place), *cut)
            if state == TICKED:
                decided.clear(places[places == place])
            # An episode that nobody has acted in was never seen: the last outcome stands.
            if state in (TICKED, STEPPING) or (state == READY and running.step[place]):
                decided.interrupt(place)
            self.state[place] = IDLE
