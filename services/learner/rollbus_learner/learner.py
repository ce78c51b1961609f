"""The learner: sample, update, publish, checkpoint. One loop for all algorithms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollbus_accel.backends.base import choose, resolve_device
from rollbus_core.checkpoints import ENVIRONMENTS, take_lineage, version_of
from rollbus_core.feed import TRAINING_TABLE, Feed
from rollbus_core.lines import is_no_room
from rollbus_core.log import get_logger
from rollbus_core.member import Member
from rollbus_core.metrics import MetricsWriter
from rollbus_core.paths import RunPaths
from rollbus_core.running_episodes import RunningEpisodes, read_episodes
from rollbus_core.service import Service
from rollbus_core.slabs import SlabFolder
from rollbus_core.weights.base import Weights, WeightSink
from rollbus_learner import rewards
from rollbus_learner.algorithm import Algorithm
from rollbus_learner.audit import Audit
from rollbus_learner.checkpoint import Checkpoints
from rollbus_learner.environments import follow
from rollbus_learner.loop import NonFiniteLoss
from rollbus_learner.schedule import Due, RecentReturn, Shares
from rollbus_learner.streams import Streams
from rollbus_learner.trainer import Trainer, check_gap, dump
from rollbus_wire.errors import StaleRead
from rollbus_wire.link import Link
from rollbus_wire.messages import (
    Batch,
    CheckpointSaved,
    Evaluated,
    Fault,
    Message,
    Notice,
)
from rollbus_wire.own_code import guard
from rollbus_wire.polling import Poller

#: Stages may last this long; an update ten times the last one, at least the default.
FIRST_UPDATE_S, CHECKPOINT_S = 120.0, 120.0
#: Announced checkpoints that are kept until an evaluator, which may be slow to start, has come to them.
MAX_AWAITED = 8
TELL_EVERY_S = 2.0  # the notice is told again: one that was lost would stop everything
SAVE_AGAIN_S = 2.0  # after there was no room
#: Time until a refused request is made again.
RETRY_S = 1.0


class Learner(Service):
    """One learner of the tables of ``feeds``, the main one first. ``weights`` is where actors read from."""

    role = "learner"

    def __init__(
        self, name: str, algorithm: Algorithm, feeds: Mapping[str, Feed], recipe: Any, paths: RunPaths, *,
        registry: Link, store: Link, weights: WeightSink, refusals: Callable[[], dict[str, int]] = dict,
    ) -> None:  # fmt: skip
        """``recipe`` has the sections run, learner, checkpoint, eval, stop_when, broker, deploy. ``refusals``
        counts those who may not fetch weights."""
        super().__init__(name)
        self.recipe, self.paths = recipe, paths
        self.registry, self.store, self.weights, self._refusals = registry, store, weights, refusals
        self.log = get_logger(paths, name)
        device = resolve_device(recipe.learner.device, choose(recipe.deploy.backend))
        self.trainer = Trainer(
            algorithm, feeds, device=device, seed=recipe.run.seed, total_steps=recipe.run.total_steps,
            total_updates=recipe.run.total_updates, precision=recipe.learner.precision,
            micro_batch=recipe.learner.micro_batch,
            rewards=rewards.build(
                recipe.learner.rewards, feeds, algorithm.spec, _discount(algorithm), device
            ),
        )  # fmt: skip
        self.checkpoints = Checkpoints(paths.checkpoints, recipe.checkpoint.keep, paths.config)
        self.streams = Streams(
            feeds, store, SlabFolder(paths.store if recipe.broker.fsync else paths.runtime), algorithm.policy,
            self._refused,
        )  # fmt: skip
        self.member: Member = Member(
            registry, self.role, name,
            stats=self.stats, state=lambda: self.state, on_registered=lambda _: self._send_notice(),
        )  # fmt: skip
        self._audit = Audit(paths.audit) if recipe.run.audit else None
        causes = self._audit.files if self._audit else ()
        self._metrics = MetricsWriter(paths, on_missing=self.log.warning, after=causes)
        self._episodes = RunningEpisodes() if recipe.run.deterministic else None
        self._last: dict[str, Any] = {}
        #: Deliveries that the algorithm found too little of; the next one joins them.
        self._held: list[Batch] = []
        self._retry_at = 0.0
        self._opened = False
        self._notice: Notice | None = None
        self._unpublished: Weights | None = None
        self._tell_at = 0.0
        #: Announced checkpoints that no evaluation has come for.
        self._awaited: list[Path] = []
        self._returns, self._shares = RecentReturn(), Shares(time.monotonic())
        self._update_s = FIRST_UPDATE_S / 10
        self._saved_at, self._save_again = -1, 0.0

    # --- life -----------------------------------------------------------------------------------

    def start(self, poller: Poller) -> None:
        super().start(poller)
        poller.add(self.registry)
        poller.add(self.store)
        self._resume()
        counters, recipe = self.trainer.counters, self.recipe
        self._save_due = Due(recipe.checkpoint.every_steps, recipe.checkpoint.every_updates, counters)
        self._eval_due = Due(recipe.eval.every_steps, recipe.eval.every_updates, counters)
        self._started = self._free_since = self._row_at = self._last_save = time.monotonic()
        self._unpublished = self.trainer.published()

    def poll(self) -> bool:
        busy = False
        for envelope in self.member.poll():
            busy = True
            if isinstance(envelope.message, Evaluated):
                self._evaluated(envelope.message)
        busy |= self.streams.poll()
        if self._audit is not None:
            self._audit.flush()
        if self.state == "stopped" or self.member.registered is None:
            return busy
        self._publish()
        if self._unpublished is None and not self._opened and time.monotonic() >= self._retry_at:
            self._open()
        if (batches := self.streams.take()) is not None:
            self._learn(batches)
            return True
        if self.state == "run" and not self.streams.waiting and time.monotonic() >= self._retry_at:
            self.member.stage("sample")
            self.streams.sample(self.trainer.counters.updates, self.trainer.draw_seed)
        return busy

    def wake_in_s(self) -> float:
        return 0.005 if self._unpublished is not None else 0.1

    def drain(self) -> None:
        if self.state != "stopped":
            self.log.info("draining", updates=self.trainer.counters.updates)
            self._finish(final=False)

    def stop(self) -> None:
        self.member.leave("finished" if self.state == "stopped" else "failed")
        self._metrics.close()
        if self._audit is not None:
            self._audit.close()
        self.weights.close()
        for link in (self.registry, self.store):
            link.close()

    def stats(self) -> dict[str, Any]:
        """Numbers of the heartbeat."""
        counters = self.trainer.counters
        own = {
            "updates": counters.updates, "env_steps": counters.env_steps, "episodes": counters.episodes,
            "version": str(counters.version), "return_mean": self._returns.mean,
            "episode_length": self._last.get("length_mean"), "stale_chunks": self.streams.stale_chunks,
            "corrupt_chunks": self.streams.corrupt_chunks, "refused": self._refusals(),
            "lost_steps": self.checkpoints.lost_steps,
        }  # fmt: skip
        return self._last | own | self._shares.read(time.monotonic())

    # --- data -----------------------------------------------------------------------------------

    def _open(self) -> None:
        self._opened = True
        counters = self.trainer.counters
        self.streams.open(counters.version, counters.applied, self._on_open)

    def _on_open(self) -> None:
        if self.state != "stopped":
            self.state = "run"
            if self._reached_end():
                self._finish(final=True)

    def _refused(self, what: str, message: Message) -> None:
        """The store does not have what it had: open the table again, from what is applied."""
        self._held = []
        self._opened, self._retry_at = False, time.monotonic() + RETRY_S
        text = f"{message.code}: {message.text}" if isinstance(message, Fault) else message.kind
        self.log.warning("refused by the store", request=what, answer=text)

    def _learn(self, batches: dict[str, Batch]) -> None:
        """One update, from the slabs to the next version."""
        if self.state == "stopped":
            return
        before, counters = self.trainer.counters.env_steps, self.trainer.counters
        times = [time.monotonic()]
        self.member.stage("update", max(2.0, 10 * self._update_s))
        metrics = self._apply(batches, times)
        if metrics is None:
            self.streams.consumed(sequences(batches), counters.version, counters.updates)
            return
        self._unpublished = self.trainer.published()
        self._publish()
        times.append(time.monotonic())
        priorities = self.trainer.algorithm.priorities()
        self.streams.consumed(sequences(batches), counters.version, counters.updates, priorities)
        self._record(metrics, times, counters.env_steps - before)
        check_gap(metrics, self.recipe.learner.gap_limit)
        self._save_what_is_due()
        self._free_since = time.monotonic()
        if self._reached_end():
            self._finish(final=True)

    def _apply(self, batches: dict[str, Batch], times: list[float]) -> dict[str, float] | None:
        """Gather and update; appends the time after each to ``times``. None: more is wanted first."""
        trainer, main = self.trainer, self.streams.main
        parts, message = [*self._held, batches[main]], batches[main]
        if self._held:
            message = replace(message, chunks=[chunk for part in parts for chunk in part.chunks])
            batches, self._held = {**batches, main: message}, []
        try:
            batch = self.streams.read(batches)
        except StaleRead as error:
            self.log.warning("batch lost", sequence=message.sequence, reason=str(error))
            self.streams.lost(batches)
            trainer.skip(sequences(batches))
            times += [time.monotonic()] * 2
            self._audit_batch(message)
            return {"samples": 0}
        times.append(time.monotonic())
        if trainer.algorithm.wants_more(batch, len(parts)):
            self._held = parts
            return None
        try:
            with guard(trainer.algorithm.config.name, "an update"):
                metrics = trainer.apply(batch, sequences(batches), message.total_steps)
        except NonFiniteLoss as error:
            path = dump(error, self.paths.root, trainer.counters.updates)
            self.log.error("not finite", term=error.term, step=error.step, minibatch=str(path))
            raise
        times.append(time.monotonic())
        self._audit_batch(message)
        follow(self._episodes, self.streams.slabs, message, trainer.algorithm.policy)
        return metrics

    def _audit_batch(self, message: Batch) -> None:
        if self._audit is not None and self.streams.main == TRAINING_TABLE:
            version, streams = self.trainer.counters.version, self.streams
            self._audit.applied(streams.slabs, message, version, streams.unread, streams.asked)

    def _record(self, metrics: dict[str, float], times: list[float], steps: int) -> None:
        now, counters = times[-1], self.trainer.counters
        self._update_s = times[2] - times[0]
        if metrics.get("episodes"):
            self._returns.add(metrics["return_mean"], metrics["episodes"])
        self._shares.add(now, now - times[0], steps)
        of_tasks = {name: value for name, value in self._last.items() if "/" in name}
        self._last = of_tasks | {name: value for name, value in metrics.items() if name != "return_mean"}
        self._metrics.write(
            {
                "update": counters.updates, "env_steps": counters.env_steps,
                "env_steps_per_s": steps / max(now - self._row_at, 1e-9),
                "version": str(counters.version), **metrics, "stale_chunks": self.streams.stale_chunks,
                "corrupt_chunks": self.streams.corrupt_chunks,
                "sample_s": times[0] - self._free_since, "gather_s": times[1] - times[0],
                "update_s": times[2] - times[1], "publish_s": times[3] - times[2],
            }
        )  # fmt: skip
        self._row_at = now

    # --- weights --------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Give actors the newest version; again at the next turn if no buffer is free.

        What is unpublished may view the parameters: they change only when it is replaced, too.
        """
        if self._unpublished is None:
            if time.monotonic() >= self._tell_at:
                self._send_notice()
            return
        notice = self.weights.publish(self.trainer.counters.version, self._unpublished)
        if notice is not None:
            self._notice, self._unpublished = notice, None
            self._send_notice()

    def _send_notice(self) -> None:
        self._tell_at = time.monotonic() + TELL_EVERY_S
        if self._notice is not None:
            self.member.send(self._notice)

    # --- checkpoints ----------------------------------------------------------------------------

    def _resume(self) -> None:
        """Restore the last checkpoint if the recipe wants it; every start has a lineage of its own."""
        counters = self.trainer.counters
        path = self.checkpoints.resume(self.recipe.run.resume, self.trainer.training, self.log)
        if path is not None:
            self._saved_at = counters.updates
            if self._episodes is not None:
                self._episodes.load(read_episodes(path))
        counters.lineage = take_lineage(self.paths.checkpoints)
        if self._audit is not None:
            applied, passed_over = counters.applied.get(TRAINING_TABLE, 0), self.checkpoints.passed_over
            self._audit.began(counters.version, applied, map(version_of, passed_over))

    def _save_what_is_due(self) -> None:
        counters = self.trainer.counters
        wanted, recent = self.recipe.eval.start_return, self._returns.mean
        evaluate = self._eval_due.due(counters) and (
            wanted is None or (recent is not None and recent >= wanted)
        )
        every_s = self.recipe.checkpoint.every_s
        late = bool(every_s) and time.monotonic() - self._last_save >= every_s
        if not (evaluate or late or self._save_due.due(counters)) or time.monotonic() < self._save_again:
            return
        try:
            path = self._save()
        except OSError as error:
            self._no_room(error)
            return
        self._save_due.done(counters)
        if evaluate:
            self._eval_due.done(counters)
            self._announce(path, final=False)

    def _no_room(self, error: OSError) -> None:
        """Training goes on with a full disk."""
        if not is_no_room(error):
            raise error
        self.checkpoints.files.sweep()
        self._save_again = time.monotonic() + SAVE_AGAIN_S
        self.member.failure = f"no checkpoint: {error.strerror}; free some room for {self.paths.root}"
        self.log.warning("no checkpoint", why=error.strerror)

    def _save(self) -> Path:
        began, counters = time.monotonic(), self.trainer.counters
        self.member.stage("checkpoint", CHECKPOINT_S)
        more = {ENVIRONMENTS: self._episodes.save} if self._episodes is not None else {}
        path = self.checkpoints.save(self.trainer.training, self._awaited, more)
        self._saved_at, self._last_save = counters.updates, time.monotonic()
        self.member.failure = ""
        self.streams.durable(counters.applied)
        self._shares.add(time.monotonic(), time.monotonic() - began, 0)
        self.log.info("saved", checkpoint=path.name, env_steps=counters.env_steps)
        return path

    def _announce(self, path: Path, *, final: bool) -> None:
        counters = self.trainer.counters
        self._awaited = [*self._awaited[1 - MAX_AWAITED :], path]
        self.member.send(
            CheckpointSaved(str(path), list(counters.version), counters.env_steps, counters.updates, final)
        )

    def _evaluated(self, message: Evaluated) -> None:
        """Stop if it is good enough; the evaluator has marked the best."""
        path, result = Path(message.path), message.result
        score = float(result["mean_return"])
        if path in self._awaited:
            self._awaited = self._awaited[self._awaited.index(path) + 1 :]
        wanted = self.recipe.stop_when
        enough = len(result.get("episodes", ())) >= (wanted.episodes or self.recipe.eval.episodes)
        if (
            wanted.eval_return is not None
            and score >= wanted.eval_return
            and enough
            and self.state != "stopped"
        ):
            self.log.info("good enough", mean_return=score, wanted=wanted.eval_return)
            self._finish(final=False)

    # --- end ------------------------------------------------------------------------------------

    def _reached_end(self) -> bool:
        limit_s = self.recipe.run.wall_limit_s
        out_of_time = bool(limit_s) and time.monotonic() - self._started >= limit_s
        run, counters = self.recipe.run, self.trainer.counters
        enough_updates = bool(run.total_updates) and counters.updates >= run.total_updates
        return out_of_time or enough_updates or counters.env_steps >= run.total_steps

    def _finish(self, *, final: bool) -> None:
        """Save what is not saved; a ``final`` checkpoint is evaluated, one of an interruption is not."""
        counters = self.trainer.counters
        if counters.updates != self._saved_at and (final or counters.updates):
            self._save()
        if final:
            path = (self.paths.checkpoints / "last").resolve()
            self._announce(path, final=True)
            self.log.info("finished", env_steps=counters.env_steps, updates=counters.updates)
        self.state = "stopped"


def _discount(algorithm: Algorithm) -> float | None:
    """Discount per environment step; None of algorithms that compare whole episodes."""
    gamma = getattr(algorithm.config, "gamma", None)
    return None if gamma is None else float(gamma)


def sequences(batches: Mapping[str, Batch]) -> dict[str, int]:
    """Stream -> number of its delivery."""
    return {name: batch.sequence for name, batch in batches.items()}
