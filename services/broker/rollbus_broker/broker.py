"""The broker service: registry, store and HTTP in one process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from rollbus_broker.http import HttpServer
from rollbus_broker.metrics import Snapshot
from rollbus_broker.registry.boot import BootFile
from rollbus_broker.registry.registry import Registry
from rollbus_broker.store.store import Store
from rollbus_core.config.models import BrokerConfig
from rollbus_core.key_folder import HTTP_TOKEN, configured, read_token
from rollbus_core.paths import RunPaths
from rollbus_core.service import Service
from rollbus_wire.errors import BindRefused
from rollbus_wire.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from rollbus_wire.link import Link
from rollbus_wire.polling import Poller
from rollbus_wire.zmq_link import ZmqLink

#: /metrics is at most this old.
PUBLISH_S = 0.5
#: How long a stopping broker serves members that have not ended yet.
DRAIN_S = 3.0
#: The same when only the broker was told to end.
DRAIN_ALONE_S = 1.0


class Broker(Service):
    """One run's registry and store. Links are bound at `start` unless given, by ``bind`` (plane, endpoint,
    bytes of the largest frame).

    ``refusals`` counts those who were not let in, as "plane/reason/role".
    """

    role = "broker"

    def __init__(
        self,
        paths: RunPaths,
        config: BrokerConfig,
        *,
        registry_link: Link | None = None,
        store_link: Link | None = None,
        bind: Callable[[str, str, int], Link] | None = None,
        refusals: Callable[[], dict[str, int]] = dict,
        clock: Callable[[], float] = time.monotonic,
        log: Any = None,
        audit: Path | None = None,
    ) -> None:
        super().__init__("broker-0")
        self.paths, self.config, self._audit = paths, config, audit
        self._links = [registry_link, store_link]
        self._bind = bind or (
            lambda _, endpoint, size: ZmqLink.bind(endpoint, paths.run_id, max_frame_bytes=size)
        )
        self._refusals = refusals
        self._clock = clock
        self._log = log or structlog.get_logger("broker")
        self._http: HttpServer | None = None
        self._box = [Snapshot()]
        self._published = float("-inf")
        self._drain_until = 0.0
        self._lock = -1
        self.registry: Registry
        self.store: Store

    @property
    def url(self) -> str:
        """Where HTTP is served; empty if it is off."""
        return self._http.url if self._http else ""

    @property
    def stop_requested(self) -> bool:
        return self.state != "start" and self.registry.stop_requested

    def start(self, poller: Poller) -> None:
        super().start(poller)
        self.paths.create()
        now = self._clock()
        # First of all: a second broker of this run must end here and change nothing.
        self._lock = _lock(self.paths)
        registry_link = self._links[0] or self._bind("registry", self.paths.registry, MAX_HEADER_BYTES)
        self._links[0] = registry_link
        store_link = self._links[1] or self._bind("store", self.paths.store_endpoint, MAX_FRAME_BYTES)
        self._links[1] = store_link
        boot = BootFile(self.paths.boot_file)
        folder = self.paths.store if self.config.fsync else self.paths.runtime
        self.store = Store(
            store_link,
            folder,
            self.paths.store_log,
            self.config,
            boot.boot,
            now,
            log=self._log,
            audit=self._audit,
        )
        self.registry = Registry(
            registry_link, self.paths, self.config, boot, now,
            on_lost=lambda member, dead: self.store.lost(member.producer, dead, self._clock(), member.role),
            tables=self.store.tables, notice=lambda: self.store.drops.notice, log=self._log,
        )  # fmt: skip
        if self.config.http:
            self._http = HttpServer(self.config.http, self._box, self._token())
            self.paths.http.write_text(self._http.url + "\n")
        poller.add(registry_link)
        poller.add(store_link)
        self.state = "run"
        self._log.info("broker ready", boot=boot.boot, http=self.url)

    def poll(self) -> bool:
        now = self._clock()
        busy = self.registry.poll(now)
        busy |= self.store.poll(now)
        if now - self._published >= PUBLISH_S:
            self._published = now
            self._box[0] = self._snapshot(now)
        if self.state == "drain" and (now >= self._drain_until or not self._others()):
            self.state = "stopped"
        return busy

    def wake_in_s(self) -> float:
        return min(0.1, self.config.heartbeat_s / 2)

    def drain(self) -> None:
        """Serve members until they have ended, for a bounded time."""
        if self.state == "run":
            limit = DRAIN_S if self.registry.stop_requested else DRAIN_ALONE_S
            self._drain_until = self._clock() + limit
            self.state = "drain"

    def stop(self) -> None:
        if self._http is not None:
            self._http.stop()
            self.paths.http.unlink(missing_ok=True)
        if hasattr(self, "store"):
            self.store.close()
        for link in self._links:
            if link is not None:
                link.close()
        if self._lock >= 0:
            os.close(self._lock)
        self.state = "stopped"

    def _token(self) -> bytes:
        """What HTTP asks for: of the stated file, else of the key folder's, if there is one."""
        folder = configured()
        path = Path(self.config.http_token) if self.config.http_token else folder and folder / HTTP_TOKEN
        return read_token(path) if path and (self.config.http_token or path.exists()) else b""

    def _refused(self) -> dict[str, int]:
        denied = self._http.denied if self._http else 0
        return self._refusals() | ({"http/token/": denied} if denied else {})

    def _others(self) -> bool:
        """Whether a member lives that may still commit or save; the launcher ends after us."""
        return any(m.role not in ("launcher", "annotator") for m in self.registry.membership.living())

    def _snapshot(self, now: float) -> Snapshot:
        links = zip(("registry", "store"), self._links)
        return Snapshot(
            self.ready,
            self.registry.boot,
            tuple(self.registry.members(now)),
            tuple(self.store.tables()),
            {plane: dict(link.rejected) for plane, link in links if link is not None},
            dict(self.registry.unsent),
            dict(self.store.counts),
            self._refused(),
        )


def _lock(paths: RunPaths) -> int:
    """Descriptor that holds this run's broker lock. A bound ipc socket would not keep others out."""
    descriptor = os.open(paths.broker_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise BindRefused(
            f"another broker serves {paths.root}; stop it (rollbus stop), or use another run folder"
        ) from None
    return descriptor
