"""One address in front of servers that take turns, as a service name before a primary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

_CHUNK = 64 * 1024
_LOOPBACK = "127.0.0.1"


@dataclass
class Switch:
    """Carries every connection to the server of the time it was opened.

    Attributes:
        port: where clients connect.
        target: the port of the server that new connections lead to.
    """

    target: int
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def turn_to(self, target: int) -> None:
        """Lead to another server; connections to the one of before end."""
        self.target = target
        await self.cut()

    async def cut(self) -> None:
        """End all connections."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or the switch turned
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(_LOOPBACK, self.target)
        ways = [
            asyncio.ensure_future(_pump(reader, far_writer)),
            asyncio.ensure_future(_pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def switch(target: int) -> AsyncGenerator[Switch]:
    """A switch that leads to the server on this port of the loopback."""
    made = Switch(target)
    server = await asyncio.start_server(made.serve, _LOOPBACK, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await made.cut()
