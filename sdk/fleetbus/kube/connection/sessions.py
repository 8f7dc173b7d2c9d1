"""The connections of one client.

A new connection may lead to another cluster than the open ones: the server's name may resolve
differently by now, or a proxy may have been redirected. So where it matters (rule W13) nothing is
sent through a new connection before a check of where new connections lead has passed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from fleetbus.kube.connection.address import AddressInfo
from fleetbus.kube.connection.transport import Verify

KUBE_SYSTEM: Final = "/api/v1/namespaces/kube-system"
"""The namespace whose UID identifies the cluster."""

KEPT: Final = 45.0
"""Seconds for which an unused connection is kept: longer than the pauses of discovery, as each new
connection is verified with a request; shorter than API servers (90 s) and the usual proxies do."""

Guard = Callable[[AddressInfo], socket.socket]


class Sessions:
    """The connections of one client, opened on demand.

    Args:
        buffer: roughly how many unread bytes one response may hold.
        guard: makes the sockets; None allows any address.
        verify: called for each new connection before a request goes through it.
        decompress: whether bodies are decompressed.
        exempt: the path of requests that are the check themselves; empty if all of those have
            connections of their own.
        kept: seconds for which an unused connection is kept.
    """

    def __init__(
        self,
        *,
        buffer: int,
        guard: Guard | None,
        verify: Verify,
        decompress: bool = True,
        exempt: str = KUBE_SYSTEM,
        kept: float = KEPT,
    ) -> None:
        self._buffer = buffer
        self._guard = guard
        self._verify = verify
        self._decompress = decompress
        self._exempt = exempt
        self._kept = kept
        self._shared: aiohttp.ClientSession | None = None
        self._alone: aiohttp.ClientSession | None = None

    def get(self, *, alone: bool = False) -> aiohttp.ClientSession:
        """A session for one request.

        Args:
            alone: the request opens a connection of its own, which is not verified.
        """
        if alone:
            if self._alone is None:
                connector = aiohttp.TCPConnector(
                    limit=0, force_close=True, socket_factory=self._guard
                )
                self._alone = aiohttp.ClientSession(connector=connector)
            return self._alone
        if self._shared is None:
            connector = _VerifyingConnector(
                guard=self._guard, verify=self._verify, exempt=self._exempt, kept=self._kept
            )
            self._shared = aiohttp.ClientSession(
                connector=connector, read_bufsize=self._buffer, auto_decompress=self._decompress
            )
        return self._shared

    async def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        sessions = (self._shared, self._alone)
        self._shared = self._alone = None
        # A stack, as whoever is cancelled while one session closes must still close the other.
        async with AsyncExitStack() as closing:
            for session in sessions:
                if session is not None:
                    closing.push_async_callback(session.close)


class _VerifyingConnector(aiohttp.TCPConnector):
    """Verifies each connection once, before it is used."""

    def __init__(self, *, guard: Guard | None, verify: Verify, exempt: str, kept: float) -> None:
        # limit=0: every watch holds a connection, so any limit would deadlock some day.
        # A name may resolve differently next time, so each socket is checked (rule S7).
        super().__init__(limit=0, socket_factory=guard, keepalive_timeout=kept)
        self._verify = verify
        self._exempt = exempt
        self._verified: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 -- as aiohttp calls it
    ) -> Connection:
        """A connection for one request.

        Raises:
            NotAccepted: it leads to another cluster, and is closed.
        """
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        if protocol in self._verified or req.url.path == self._exempt:
            return connection
        try:
            is_verified = await self._verify(req.method)
        except BaseException:
            connection.close()
            raise
        if is_verified and protocol is not None:
            self._verified.add(protocol)
        return connection

    def _release(
        self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False
    ) -> None:
        """Put a connection where the next request takes it, as Go's transport does.

        aiohttp takes the one that is unused for longest (its pull request 9672). So none of them
        ever expires under a steady load, and as many stay as the worst moment needed.
        """
        super()._release(key, protocol, should_close=should_close)
        unused = self._conns.get(key)
        if unused and unused[-1][0] is protocol:
            unused.rotate(1)
