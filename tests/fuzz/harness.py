"""What all fuzz targets share: bytes to messages, and the loop of atheris.

A target is a file with ``fuzz(data: bytes) -> None``, which may raise nothing, and ``seeds()``, inputs to
begin with. ``make fuzz TARGET=codec RUNS=1000000`` runs one under atheris with coverage; `make test` replays
the corpus of each and tries a few inputs of hypothesis.

    python tests/fuzz/harness.py TARGET [--runs N] [--seconds S] [--blind]
"""

from __future__ import annotations

import argparse
import importlib
import logging
import resource
import sys
import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
#: Inputs that are kept, and, outside of git, what runs find: new inputs, and those that raised.
CORPUS, FOUND = HERE / "corpus", HERE.parents[1] / ".fuzz"
#: Packages whose coverage guides the search.
INSTRUMENTED = [f"rollbus_{name}" for name in ("wire", "core", "broker", "simulator", "actor", "launch")]
#: Files here that are no target.
OTHERS = {"harness", "conftest", "fuzz_services"}


def targets() -> list[str]:
    """Names of all targets."""
    return sorted(
        path.stem
        for path in HERE.glob("*.py")
        if path.stem not in OTHERS and not path.stem.startswith("test_")
    )


def load(name: str) -> ModuleType:
    """The target ``name``."""
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    return importlib.import_module(name)


class Bytes:
    """Values taken from fuzzed bytes; where they end, zeros follow."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def __len__(self) -> int:
        return max(0, len(self._data) - self._place)

    def take(self, count: int) -> bytes:
        part = self._data[self._place : self._place + count]
        self._place += count
        return part.ljust(count, b"\0")

    def number(self, limit: int) -> int:
        """0 <= n < limit, limit <= 256."""
        return self.take(1)[0] % limit

    def rest(self) -> bytes:
        part, self._place = self._data[self._place :], len(self._data)
        return part

    def array(self) -> np.ndarray:
        dtype = np.dtype(["?", "i1", "i2", "<i4", "<i8", "u1", "<u8", "<f2", "<f4", "<f8"][self.number(10)])
        shape = tuple(self.number(4) for _ in range(self.number(4)))
        return np.frombuffer(self.take(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)

    def value(self, depth: int = 2) -> Any:
        """Anything that a message may hold."""
        kind = self.number(12 if depth else 9)
        if kind < 3:
            return INTEGERS[self.number(len(INTEGERS))]
        if kind == 3:
            return FLOATS[self.number(len(FLOATS))]
        if kind == 4:
            return TEXTS[self.number(len(TEXTS))]
        if kind == 5:
            return self.take(self.number(9))
        if kind == 6:
            return self.array()
        if kind < 9:
            return (None, True, False)[self.number(3)]
        if kind < 11:
            return [self.value(depth - 1) for _ in range(self.number(4))]
        return {self.take(2).decode("latin1"): self.value(depth - 1) for _ in range(self.number(4))}


INTEGERS = (
    0, 1, 2, 3, -1, 7, 64, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, 1 << 63,
    -(1 << 63), (1 << 64) - 1,
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324)
TEXTS = (
    "", "a", "main", "hub-0/0", "queue", "xxh3", "crc32", "../../x", "\0", "ipc:///nowhere", "n" * 300,
    "\u00e9\u2028", "object", "float32",
)  # fmt: skip


def mutated(message: Any, data: Bytes) -> dict[str, Any]:
    """The fields of ``message`` with some of them replaced by, or filled with, fuzzed values."""
    names = [item.name for item in fields(message)]
    body = {name: getattr(message, name) for name in names if getattr(message, name) is not None}
    for _ in range((1 + data.number(3)) * bool(names)):
        name = names[data.number(len(names))]
        body[name] = _changed(body.get(name), data, 3)
    return body


def _changed(value: Any, data: Bytes, depth: int) -> Any:
    """Another value, or the same one changed somewhere inside."""
    how = data.number(4)
    if how == 0 or not depth:
        return data.value()
    if isinstance(value, dict) and value:
        key = sorted(value)[data.number(min(len(value), 256))]
        if how == 1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: _changed(value[key], data, depth - 1)}
    if isinstance(value, list) and value:
        place = data.number(min(len(value), 256))
        changed = _changed(value[place], data, depth - 1)
        return value[:place] + [changed] + value[place + 1 + (how == 1) :]
    if isinstance(value, np.ndarray) and value.size:
        return _changed_array(value, data)
    if type(value) is int:
        return value + data.number(256) - 128
    return data.value()


def _changed_array(value: np.ndarray, data: Bytes) -> np.ndarray:
    how = data.number(5)
    if how == 0:
        return value.reshape(value.shape or (1,))[..., : data.number(4)]
    if how == 1:
        return value.reshape(-1)
    if how == 2:
        return np.repeat(value, data.number(4), axis=0) if value.ndim else value
    if how == 3:
        kind = ["<i4", "<i8", "<f4", "<f8", "u1", "?"][data.number(6)]
        with np.errstate(invalid="ignore"):  # NaN has no integer
            return value.astype(kind)
    raw = bytearray(value.tobytes())
    raw[data.number(256) % len(raw)] = data.take(1)[0]
    return np.frombuffer(bytes(raw), value.dtype).reshape(value.shape)


def replay(target: ModuleType, inputs: Iterable[bytes]) -> int:
    """Run ``target`` on each of ``inputs``; how many."""
    count = 0
    for data in inputs:
        target.fuzz(data)
        count += 1
    return count


def corpus(name: str) -> list[bytes]:
    """What is kept of a target, and its seeds."""
    kept = [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]
    return kept + list(load(name).seeds())


class Progress:
    """Counts executions and says how fast they are and what memory does."""

    def __init__(self, name: str) -> None:
        self.name, self.count, self.began = name, 0, time.monotonic()
        self._first_kib, self._told = 0, self.began

    def one(self) -> None:
        """An execution begins."""
        self.count += 1
        if self.count == 10_000:
            self._first_kib = _rss_kib()
        if time.monotonic() - self._told >= 10.0:
            self.tell()

    def tell(self) -> None:
        """Print a line."""
        self._told = time.monotonic()
        rate = self.count / max(self._told - self.began, 1e-9)
        memory = f"RSS {self._first_kib >> 10} -> {_rss_kib() >> 10} MiB"
        print(f"{self.name}: {self.count} executions, {rate:.0f}/s, {memory}", flush=True)


def guided(name: str, arguments: list[str]) -> None:
    """Let atheris search, guided by coverage."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        target = load(name)
    found, kept = FOUND / name, CORPUS / name
    for folder in (found, kept):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (found / f"seed-{number}").write_bytes(seed)
    progress = Progress(name)

    def one(data: bytes) -> None:
        progress.one()
        target.fuzz(data)

    options = ["-max_len=512", "-timeout=20", f"-artifact_prefix={FOUND / name}-"]
    atheris.Setup([sys.argv[0], *options, *arguments, str(found), str(kept)], one)
    atheris.Fuzz()


def blind(name: str, runs: int, limit_s: float, seed: int = 1) -> int:
    """Mutate the corpus at random, without coverage and so ten times as fast; how many inputs ran."""
    target, random = load(name), Random(seed)
    inputs, progress = corpus(name), Progress(name)
    while progress.count < runs and time.monotonic() - progress.began < limit_s:
        data = mutate(inputs[random.randrange(len(inputs))], random)
        progress.one()
        try:
            target.fuzz(data)
        except BaseException:
            print(f"{name}: raised by {data!r}", flush=True)
            raise
    progress.tell()
    return progress.count


def mutate(data: bytes, random: Random) -> bytes:
    """``data`` with a few bytes changed, put in, left out or repeated."""
    changed = bytearray(data)
    for _ in range(1 + random.randrange(6)):
        place, how = random.randrange(len(changed) + 1), random.randrange(5)
        if how == 0:
            changed[place:place] = random.randbytes(1 + random.randrange(8))
        elif how == 1:
            del changed[place : place + 1 + random.randrange(4)]
        elif how == 2:
            changed[place : place + 4] = random.choice(EDGES)
        elif how == 3 and changed:
            changed[place % len(changed)] ^= 1 << random.randrange(8)
        else:
            changed[place:place] = changed[: random.randrange(16)]
    return bytes(changed[:512])


EDGES = (
    b"\0",
    b"\xff",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f",
    b"\x80",
    b"\xdd\xff\xff\xff\xff",
    b"\xc7\xff\1",
)


def main() -> None:
    """Under atheris, or with --blind without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", choices=targets())
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--blind", action="store_true", help="without coverage")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.blind:
        blind(options.target, options.runs, options.seconds)
    else:
        guided(options.target, [f"-runs={options.runs}", f"-max_total_time={options.seconds}"])


def _rss_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 10


if __name__ == "__main__":
    main()
