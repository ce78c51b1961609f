"""Test an environment against the contract: ``python -m rollbus_wire.check module:factory``.

`check_env` runs the environment as a hub would and reports each broken promise: what, the value,
where, and what to do. Nothing here knows a particular environment.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from .checker import Checker
from .checks import CHECKS
from .errors import RollbusError, SpecError
from .places import place_of_thread

#: The first check.
MADE = "it can be made"
#: Each check of the command line may last so long, unless told.
LIMIT_S = 60.0


@dataclass
class Problem:
    """One broken promise."""

    check: str
    text: str

    def __str__(self) -> str:
        return "%s: %s" % (self.check, self.text)


@dataclass
class Report:
    """What `check_env` found."""

    name: str
    passed: List[str] = field(default_factory=list)
    #: Checks that do not apply, with the reason.
    skipped: List[str] = field(default_factory=list)
    problems: List[Problem] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the environment keeps the contract as far as was seen."""
        return not self.problems

    def __str__(self) -> str:
        lines = ["%s: %s" % (self.name, "ok" if self.ok else _counted(len(self.problems)))]
        lines += ["  ok       %s" % name for name in self.passed]
        lines += ["  skipped  %s" % text for text in self.skipped]
        lines += ["  PROBLEM  %s" % problem for problem in self.problems]
        return "\n".join(lines)


def check_env(
    make_env: Callable[..., Any], num_rows: int = 2, steps: int = 200,
    begins: Callable[[str], None] = lambda check: None,
) -> Report:  # fmt: skip
    """Run ``make_env`` through all checks.

    ``make_env`` makes one Gymnasium-style environment (called per row) or a batched `Env`; if it
    has a required argument, it gets the number of rows. Several instances are made in turn. ``begins`` is
    told each check before it runs.
    """
    begins(MADE)
    try:
        checker = Checker(make_env, num_rows, steps)
    except Exception as error:
        if isinstance(error, RollbusError) and not isinstance(error, SpecError):
            raise
        name = getattr(make_env, "__name__", type(make_env).__name__)
        return Report(name, problems=[Problem(MADE, _told(error))])
    report = Report(checker.spec.name)
    raised: Dict[Tuple[str, str], str] = {}
    try:
        for name, check, reason_to_skip in CHECKS:
            begins(name)
            try:
                reason = reason_to_skip(checker)
                texts = [] if reason else list(check(checker))
            except Exception as error:  # noqa: BLE001 - whatever an environment raises is reported
                first = raised.setdefault(_identity(error), name)
                reason = "" if first == name else "raises the same error as %r" % first
                texts = [_told(error)]
            if reason:
                report.skipped.append("%s: %s" % (name, reason))
            elif texts:
                report.problems += [Problem(name, text) for text in texts]
            else:
                report.passed.append(name)
    finally:
        checker.env.close()
    return report


class _Watch:
    """Says on stderr which check runs; one that lasts too long ends the process, which nothing else can."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s, self._thread = limit_s, threading.get_ident()
        self._timer: Optional[threading.Timer] = None

    def begins(self, check: str) -> None:
        self.ends()
        print("checking: %s" % check, file=sys.stderr, flush=True)
        self._timer = threading.Timer(self._limit_s, self._hangs, [check])
        self._timer.daemon = True
        self._timer.start()

    def ends(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _hangs(self, check: str) -> None:
        place = place_of_thread(self._thread)
        where = "it is in %s" % place if place else "nobody knows where"
        text = "has not ended within %g s (--limit): %s" % (self._limit_s, where)
        print("  PROBLEM  %s" % Problem(check, text), flush=True)
        os._exit(1)


def _identity(error: Exception) -> Tuple[str, str]:
    """Equal for one fault that several checks run into."""
    origin = error.__cause__ or error
    return type(origin).__name__, str(origin)


def _told(error: Exception) -> str:
    """What was raised, and in which line."""
    if isinstance(error, SpecError):
        return str(error)
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    place = " (%s:%s)" % (os.path.basename(frames[-1].filename), frames[-1].lineno) if frames else ""
    return "raised %s: %s%s" % (type(error).__name__, error, place)


def _counted(count: int) -> str:
    return "1 problem" if count == 1 else "%d problems" % count


def load_factory(path: str) -> Callable[..., Any]:
    """The attribute that ``module:attribute`` names."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise SpecError("%r is not module:factory, for example my_env:make" % path)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise SpecError("cannot import %r: %s; run it where it can be imported" % (module, error)) from None
    except AttributeError:
        raise SpecError("module %r has no %r" % (module, attribute)) from None


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Command line; 1 if the environment breaks the contract, 2 if it is not found or lacks a package."""
    parser = argparse.ArgumentParser(prog="python -m rollbus_wire.check", description=__doc__)
    parser.add_argument("factory", help="module:factory")
    parser.add_argument("--num-rows", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that one check may last")
    given = parser.parse_args(arguments)
    sys.path.insert(0, "")
    watch = _Watch(given.limit)
    try:
        watch.begins("import %s" % given.factory)
        report = check_env(load_factory(given.factory), given.num_rows, given.steps, watch.begins)
    except RollbusError as error:
        print("error: %s" % error, file=sys.stderr)
        return 2
    finally:
        watch.ends()
    print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
