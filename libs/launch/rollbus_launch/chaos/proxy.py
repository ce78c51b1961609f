"""A SOCKS 5 proxy between services, in which messages get lost, late or doubled and connections die silently.

libzmq dials through it (`ROLLBUS_SOCKS_PROXY`), so every connection of the run passes here, whatever
port a service has. What TCP cannot do it does not do: messages of a connection keep their order.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rollbus_launch.chaos.zmtp import pass_greeting, read_unit

_GRANTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00"


@dataclass(frozen=True)
class Rule:
    """What happens to messages to and from ``plane`` ("": any): each with probability ``share``."""

    kind: str
    plane: str
    share: float
    delay_s: float = 0.0


@dataclass(eq=False)
class _Connection:
    plane: str
    frozen: bool = False


class Proxy:
    """Runs in a thread of its own. ``planes``: port -> name; other ports are the data plane."""

    def __init__(self, planes: dict[int, str], seed: int) -> None:
        self._planes, self._random = planes, random.Random(seed)
        self._rule: Rule | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: What was done, by kind.
        self.done: Counter[str] = Counter()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def set(self, rule: Rule | None) -> None:
        """From now on this happens; None: nothing."""
        self._rule = rule

    def freeze(self, plane: str) -> int:
        """From now on nothing passes the present connections of ``plane``, nor their end; how many."""
        found = [c for c in list(self._connections) if c.plane == plane and not c.frozen]
        for connection in found:
            connection.frozen = True
        self.done["frozen connections"] += len(found)
        return len(found)

    def close(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._socket))
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The loop itself holds its tasks weakly, and a frozen connection is reachable from nowhere else.
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            port = await _greet(reader, writer)
            # Granted in any case: libzmq 4.3.5 aborts when it closes a socket after a refusal.
            writer.write(_GRANTED)
            there_reader, there = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            return
        connection = _Connection(self._planes.get(port, "data"))
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, reader, there), self._pump(connection, there_reader, writer)
            )
        finally:
            self._connections.discard(connection)

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Pass one direction on; its end is the other side's end, unless the connection is frozen."""
        try:
            await pass_greeting(reader, writer)
            while True:
                data, message = await read_unit(reader)
                await self._pass(connection, writer, data, message)
        except (OSError, asyncio.IncompleteReadError):
            if not connection.frozen:
                writer.close()

    async def _pass(
        self, connection: _Connection, writer: asyncio.StreamWriter, data: bytes, message: bool
    ) -> None:
        rule, copies = self._rule, 1
        if message and rule is not None and rule.plane in ("", connection.plane):
            if self._random.random() < rule.share:
                self.done[rule.kind] += 1
                copies = {"lost": 0, "doubled": 2}.get(rule.kind, 1)
                if rule.delay_s:
                    await asyncio.sleep(rule.delay_s * self._random.random())
        if connection.frozen:
            return
        writer.write(data * copies)
        await writer.drain()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """The SOCKS hand-shake without authentication; the port that is wanted."""
    _, num_methods = await reader.readexactly(2)
    await reader.readexactly(num_methods)
    writer.write(b"\x05\x00")
    _, command, _, kind = await reader.readexactly(4)
    sizes = {1: 4, 4: 16}
    size = sizes[kind] if kind in sizes else (await reader.readexactly(1))[0]
    await reader.readexactly(size)
    (port,) = struct.unpack("!H", await reader.readexactly(2))
    if command != 1:
        raise OSError("only CONNECT is served")
    return int(port)
