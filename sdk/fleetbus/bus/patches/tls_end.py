"""Ends TLS connections of nats-py 2.16 as asyncio wants it.

nats-py makes the protocol for the encrypted connection itself, and asyncio does not tell a protocol
that it passes to `start_tls` of the connection. So when the server closes, the protocol asks to
keep the other direction open, which TLS cannot, and asyncio prints "returning true from
eof_received() has no effect when using ssl".
"""

from __future__ import annotations

import asyncio
import ssl
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
        writer = cast("asyncio.StreamWriter", self._io_writer)
        # What asyncio sets itself for a connection that it has opened with TLS.
        cast("Any", writer.transport.get_protocol())._over_ssl = True  # noqa: SLF001


class TlsEndClient(Client):
    """nats-py's client, whose protocol knows that it runs over TLS."""

    async def _select_next_server(self) -> None:
        await super()._select_next_server()
        if type(self._transport) is TcpTransport:
            connected = _Transport()
            vars(connected).update(vars(self._transport))
            self._transport = connected
