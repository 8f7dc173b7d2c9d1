"""A TCP relay that counts what goes through it, with TLS and everything else of a protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast


@dataclass
class Relay:
    """A running relay.

    Attributes:
        port: where clients connect.
        sent: bytes from the clients to the server.
        received: bytes from the server to the clients.
    """

    port: int = 0
    sent: int = 0
    received: int = 0

    @property
    def total(self) -> int:
        """Bytes in both directions."""
        return self.sent + self.received


class _End(asyncio.Protocol):
    """One end of a connection; the other end is its peer."""

    def __init__(self, relay: Relay, target: int | None, peer: _End | None = None) -> None:
        self._relay = relay
        self._target = target
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []
        self._connecting: asyncio.Task[object] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._target is not None:
            loop, target = asyncio.get_running_loop(), self._target
            opening = loop.create_connection(
                lambda: _End(self._relay, None, self), "127.0.0.1", target
            )
            self._connecting = asyncio.create_task(opening, name="relay: connect")
        elif self.peer is not None:
            self.peer.join(self)

    def join(self, peer: _End) -> None:
        """Send the server what has waited for its connection."""
        self.peer = peer
        for data in self._waiting:
            self._pass_on(data)
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            self._waiting.append(data)
        else:
            self._pass_on(data)

    def _pass_on(self, data: bytes) -> None:
        assert self.peer is not None
        assert self.peer.transport is not None
        if self._target is not None:
            self._relay.sent += len(data)
        else:
            self._relay.received += len(data)
        self.peer.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()


@asynccontextmanager
async def counting_relay(target: int) -> AsyncGenerator[Relay]:
    """Relay to a port of this machine until the block ends."""
    relay = Relay()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _End(relay, target), "127.0.0.1", 0, backlog=1024)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
