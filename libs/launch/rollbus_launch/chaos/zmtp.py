"""As much of ZMTP 3 as it takes to see where messages begin and end (rfc.zeromq.org/spec/23)."""

from __future__ import annotations

import asyncio

_GREETING_BYTES = 64
_MORE, _LONG, _COMMAND = 1, 2, 4


async def pass_greeting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on the greeting as it comes: each side sends half of it before it has seen the other's."""
    left = _GREETING_BYTES
    while left:
        data = await reader.read(left)
        if not data:
            raise asyncio.IncompleteReadError(b"", left)
        writer.write(data)
        left -= len(data)


async def read_unit(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """The next whole message (all its frames) or command as it travels, and whether it is a message."""
    parts = []
    while True:
        flags = await reader.readexactly(1)
        size = await reader.readexactly(8 if flags[0] & _LONG else 1)
        parts += [flags, size, await reader.readexactly(int.from_bytes(size, "big"))]
        if flags[0] & _COMMAND:
            return b"".join(parts), False
        if not flags[0] & _MORE:
            return b"".join(parts), True
