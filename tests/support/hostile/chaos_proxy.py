"""A TCP proxy in front of a server, to break the link of one client on purpose.

Of NATS it knows where one command of a client ends and the next begins, so that single publishes
can get lost on the way: a server that is overloaded, or has just changed its leader, loses them
too. Any server may be behind it, and another one later, as a service name before a primary.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

_CHUNK = 64 * 1024
_LOOPBACK = "127.0.0.1"
_AT_ONCE = struct.pack("ii", 1, 0)


class Frames:
    """Cuts what a client sends into commands, each with its payload."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The commands that are complete now."""
        data, at = self._rest + data, 0
        pieces: list[bytes] = []
        while True:
            line_ends = data.find(b"\r\n", at)
            if line_ends < 0:
                break
            end = line_ends + 2 + _payload_size(data[at:line_ends])
            if end > len(data):
                break
            pieces.append(data[at:end])
            at = end
        self._rest = data[at:]
        return pieces


def _payload_size(line: bytes) -> int:
    if not line.upper().startswith((b"PUB ", b"HPUB ")):
        return 0
    return int(line.rpartition(b" ")[2]) + 2


def subject_of(frame: bytes) -> str:
    """The subject of a publish; empty for other commands."""
    words = frame.partition(b"\r\n")[0].split()
    is_publish = words and words[0].upper() in (b"PUB", b"HPUB")
    return words[1].decode() if is_publish else ""


@dataclass
class Link:
    """The way from one client to the server and back.

    Attributes:
        target: the port of the server that new connections lead to.
        port: where the client connects.
        is_refusing: whether new connections end at once.
        speaks_nats: whether commands of NATS are recognised; without it, any protocol passes.
        loses: which publishes never arrive, by their subject; None for none.
        lost: how many did not.
    """

    target: int
    port: int = 0
    is_refusing: bool = False
    speaks_nats: bool = True
    loses: Callable[[str], bool] | None = None
    lost: int = 0
    _up: asyncio.Event = field(default_factory=asyncio.Event)
    _down: asyncio.Event = field(default_factory=asyncio.Event)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])
    _tasks: set[asyncio.Task[None]] = field(default_factory=set["asyncio.Task[None]"])

    def __post_init__(self) -> None:
        self.heal()

    @property
    def url(self) -> str:
        """The URL for the client."""
        return f"nats://{_LOOPBACK}:{self.port}"

    def heal(self) -> None:
        """Let everything pass, also what was held."""
        self.is_refusing = False
        self.loses = None
        self._up.set()
        self._down.set()

    def hold(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing pass any more, one way or both; connections stay."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def refuse(self) -> None:
        """Break all connections, and refuse new ones."""
        self.is_refusing = True
        self.cut()

    async def turn_to(self, target: int) -> None:
        """Lead to another server; connections to the one of before end."""
        self.target = target
        await self.aclose()

    def cut(self) -> None:
        """Break all connections with a reset."""
        for writer in tuple(self._writers):
            if (sock := writer.get_extra_info("socket")) is not None:  # it has not just ended
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the client."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if not self.is_refusing:
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side is gone, or the proxy ends: so does the connection
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(_LOOPBACK, self.target)
        ways = [
            asyncio.ensure_future(self._carry_up(reader, server_writer)),
            asyncio.ensure_future(self._carry_down(server_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            server_writer.transport.abort()  # before anything that a cancellation may cut off
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = Frames()
        while data := await reader.read(_CHUNK):
            await self._up.wait()
            if self.speaks_nats:
                data = b"".join(f for f in frames.feed(data) if not self._is_lost(f))
            writer.write(data)
            await writer.drain()

    async def _carry_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            await self._down.wait()
            writer.write(data)
            await writer.drain()

    def _is_lost(self, frame: bytes) -> bool:
        if self.loses is None or not (subject := subject_of(frame)) or not self.loses(subject):
            return False
        self.lost += 1
        return True

    async def aclose(self) -> None:
        """End all connections."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def chaos_link(target: int, *, speaks_nats: bool = True) -> AsyncGenerator[Link]:
    """A link to the server on this port of the loopback, healed."""
    link = Link(target, speaks_nats=speaks_nats)
    server = await asyncio.start_server(link.serve, _LOOPBACK, 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        await link.aclose()
