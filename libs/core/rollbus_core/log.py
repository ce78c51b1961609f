"""Logs: one JSON line per event in logs/<service>.jsonl, one short line on the console."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import structlog

from rollbus_core.lines import LineFile
from rollbus_core.paths import RunPaths

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
#: Values longer than this are for the file only.
_CONSOLE_CHARS = 120
#: Lines that wait in memory while the disk is full.
_MAX_WAITING = 1000


def get_logger(paths: RunPaths, name: str, *, console: str = "info") -> Any:
    """The structlog logger of service ``name``: ``log.info("saved", path=...)``.

    Everything goes to the file; from level ``console`` on to the console too.
    """
    return structlog.wrap_logger(
        _Sink(paths.logs / f"{name}.jsonl"),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _Console(name, _LEVELS[console]),
            _to_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=True,
    ).bind(service=name)


def console_logger(name: str) -> Any:
    """A logger that has no file: one short line per event on standard error."""
    return structlog.wrap_logger(
        structlog.ReturnLogger(),
        processors=[structlog.processors.add_log_level, _Console(name, _LEVELS["info"])],
        wrapper_class=structlog.make_filtering_bound_logger(0),
    )


def take_in_standard(log: Any) -> None:
    """Let warnings of libraries, the wire among them, go to ``log``: they know `logging` only.

    For a process that is a service; where `logging` is set up already, it stays as it is.
    """
    logging.basicConfig(level=logging.WARNING, handlers=[_Standard(log)])


class _Standard(logging.Handler):
    """Passes records of `logging` on."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        try:
            getattr(self._log, level)(record.getMessage(), logger=record.name, exc_info=record.exc_info)
        except Exception:  # noqa: BLE001 - as handlers do: a bad record ends nobody
            self.handleError(record)


class _Sink:
    """Appends lines to a file, opened at the first one; safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._file: LineFile | None = None

    def msg(self, line: str) -> None:
        with self._lock:
            if self._file is None:
                self._file = LineFile(self._path, max_waiting=_MAX_WAITING)
            self._file.write(line)

    debug = info = warning = error = critical = exception = msg


class _Console:
    """Processor that also prints the event, without what is long."""

    def __init__(self, name: str, level: int) -> None:
        self._name, self._level = name, level

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if _LEVELS.get(event.get("level", method), 20) >= self._level:
            shown = {k: v for k, v in event.items() if k not in ("event", "level", "timestamp", "service")}
            details = " ".join(f"{k}={v}" for k, v in shown.items() if len(str(v)) <= _CONSOLE_CHARS)
            mark = "" if event.get("level", "info") in ("debug", "info") else f"{event['level'].upper()} "
            line = f"{time.strftime('%H:%M:%S')} {self._name} {mark}{event['event']} {details}".rstrip()
            with contextlib.suppress(OSError):  # it may go to a full disk
                print(line, file=sys.stderr)
        return event


def _to_json(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    return json.dumps(dict(event), default=str)
