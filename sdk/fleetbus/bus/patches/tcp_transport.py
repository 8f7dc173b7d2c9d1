"""Makes the TCP transport of nats-py 2.16 the same on asyncio's and on uvloop's event loop.

nats-py makes the protocol for an encrypted connection itself, and asyncio does not tell a protocol
that it passes to `start_tls` of the connection. So when the server closes, the protocol asks to
keep the other direction open, which TLS cannot, and asyncio prints "returning true from
eof_received() has no effect when using ssl".

Between the end of a connection and the moment at which nats-py reads of it, asyncio drops what is
written, and uvloop raises RuntimeError: into whoever publishes, and into nats-py's flusher, which
ends for good and takes the error for the end of the event loop.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import ParseResult

from nats.aio.client import Client
from nats.aio.transport import TcpTransport


class _Transport(TcpTransport):
    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        # What asyncio sets itself for a connection that it has opened with TLS.
        cast("Any", self._writer.transport.get_protocol())._over_ssl = True  # noqa: SLF001

    def write(self, payload: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(payload)

    def writelines(self, payload: Sequence[bytes]) -> None:
        if not self._writer.is_closing():
            self._writer.writelines(payload)

    @property
    def _writer(self) -> asyncio.StreamWriter:
        return cast("asyncio.StreamWriter", self._io_writer)


class TcpTransportClient(Client):
    """nats-py's client, whose TCP transport does the same on every event loop."""

    async def _select_next_server(self) -> None:
        await super()._select_next_server()
        if type(self._transport) is TcpTransport:
            connected = _Transport()
            vars(connected).update(vars(self._transport))
            self._transport = connected
