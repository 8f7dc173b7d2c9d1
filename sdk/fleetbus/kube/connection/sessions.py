"""The connections of one client.

Behind a new connection may be another cluster than behind those that stand: the server's name
resolves elsewhere since, or a proxy was led elsewhere. So where it matters (rule W13) nothing is
sent through one before somebody has vouched for where new connections lead.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace

from fleetbus.kube.connection.address import AddressInfo

KUBE_SYSTEM: Final = "/api/v1/namespaces/kube-system"
"""Whose UID tells which cluster answers."""

Guard = Callable[[AddressInfo], socket.socket]
Vouch = Callable[[str], Awaitable[None]]
"""Raises unless a request of this method may go through a connection that was just opened."""


class Sessions:
    """The connections of one client, opened when they are needed.

    Args:
        buffer: bytes that one response may hold unread, about.
        guard: makes the sockets; None for any address.

    Attributes:
        vouch: asked after each connection that was opened; None where any cluster is as good.
    """

    def __init__(self, *, buffer: int, guard: Guard | None) -> None:
        self.vouch: Vouch | None = None
        self._buffer = buffer
        self._guard = guard
        self._shared: aiohttp.ClientSession | None = None
        self._alone: aiohttp.ClientSession | None = None

    def get(self, *, alone: bool = False) -> aiohttp.ClientSession:
        """A session for one request.

        Args:
            alone: the request opens a connection of its own, which nobody vouches for.
        """
        if alone:
            if self._alone is None:
                connector = aiohttp.TCPConnector(
                    limit=0, force_close=True, socket_factory=self._guard
                )
                self._alone = aiohttp.ClientSession(connector=connector)
            return self._alone
        if self._shared is None:
            connector = _VouchedConnector(guard=self._guard, vouch=lambda: self.vouch)
            self._shared = aiohttp.ClientSession(connector=connector, read_bufsize=self._buffer)
        return self._shared

    async def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        sessions = (self._shared, self._alone)
        self._shared = self._alone = None
        for session in sessions:
            if session is not None:
                await session.close()


class _VouchedConnector(aiohttp.TCPConnector):
    """Hands out a connection only when somebody has vouched for it, once."""

    def __init__(self, *, guard: Guard | None, vouch: Callable[[], Vouch | None]) -> None:
        # limit=0: every watch holds a connection, so any limit is a deadlock one day.
        # A name may resolve elsewhere next time, so each socket is checked (rule S7).
        super().__init__(limit=0, socket_factory=guard)
        self._vouch = vouch
        self._vouched_for: WeakSet[ResponseHandler] = WeakSet()

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
        protocol, vouch = connection.protocol, self._vouch()
        # Whoever asks for the UID wants to know which cluster answers.
        if vouch is None or protocol in self._vouched_for or req.url.path == KUBE_SYSTEM:
            return connection
        try:
            await vouch(req.method)
        except BaseException:
            connection.close()
            raise
        if protocol is not None:
            self._vouched_for.add(protocol)
        return connection
