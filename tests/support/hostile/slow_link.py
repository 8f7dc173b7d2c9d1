"""A link with a rate, a delay and losses, as a site behind a mobile network has it.

TCP sends a lost packet again, so whoever is behind it sees no loss but a pause; that is what this
link makes of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

_PACKET = 1400
_QUEUE = 0.05
"""Seconds of data that the link holds itself."""


@dataclass
class SlowLink:
    """The way to a server.

    Attributes:
        target: the port of the server.
        bytes_per_second: in each direction.
        delay: seconds, in each direction.
        loss: the share of packets that are lost, and come a round trip later.
        port: where the client connects.
    """

    target: int
    bytes_per_second: float
    delay: float
    loss: float = 0.0
    port: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection."""
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)
        ways = ((reader, onward_writer), (onward_reader, writer))
        for number, (source, sink) in enumerate(ways):
            task = asyncio.create_task(self._carry(source, sink), name=f"slow-link {number}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(_deliver(packets, writer), name="slow-link delivery")
        chance = random.Random(1)
        free_at = arrives_at = time.monotonic()
        try:
            while data := await reader.read(_PACKET):
                free_at = max(time.monotonic(), free_at) + len(data) / self.bytes_per_second
                again = 2 * self.delay if chance.random() < self.loss else 0.0
                arrives_at = max(arrives_at, free_at + self.delay + again)  # TCP keeps the order
                packets.put_nowait((arrives_at, data))
                # the pace of the link
                await asyncio.sleep(max(0.0, free_at - time.monotonic() - _QUEUE))
            packets.put_nowait((arrives_at, b""))
            await delivering
        except OSError:
            pass
        finally:
            delivering.cancel()
            writer.close()

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _deliver(
    packets: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
) -> None:
    while True:
        arrives_at, data = await packets.get()
        # the delay of the link
        await asyncio.sleep(max(0.0, arrives_at - time.monotonic()))
        if not data:
            return
        writer.write(data)
        with contextlib.suppress(OSError):
            await writer.drain()


@contextlib.asynccontextmanager
async def slow_link(
    target: int, *, bytes_per_second: float, delay: float, loss: float = 0.0
) -> AsyncGenerator[SlowLink]:
    """A link to a server on this machine."""
    link = SlowLink(target, bytes_per_second, delay, loss)
    listening = socket.create_server(("127.0.0.1", 0))
    # The kernel would take megabytes on behalf of a link that carries them in a minute.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    server = await asyncio.start_server(link.serve, sock=listening, limit=4 * _PACKET)
    link.port = listening.getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.close()
