"""Requests to an API server over HTTP, with credentials that are reloaded (rule W19)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from typing import Final, Self

import aiohttp

from fleetbus.errors import KubeError, Unreachable
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.credentials import Credentials, explain_refusal
from fleetbus.kube.connection.parameters import Connection
from fleetbus.kube.connection.response import BrokenOff, Idle, Limits
from fleetbus.kube.connection.sessions import KUBE_SYSTEM, Sessions
from fleetbus.kube.connection.transport import Verify
from fleetbus.kube.requests import Call, acting_user
from fleetbus.kube.responses import failure_text, unreachable_error
from fleetbus.run.current import require_lease

_KEEP_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A peer that vanishes is noticed after 30 s; the default of Linux is two hours."""


class HttpTransport:
    """Sends requests over HTTP.

    Args:
        config: access data; None means the service account of the pod.
        user_agent: shown in the server's logs and in managedFields.
        buffer: roughly how many unread bytes one response may hold.
        verify: called for each new connection before a request goes through it.
        decompress: whether bodies are decompressed; otherwise they are plain, or gzip.
        exempt: as for `Sessions`.
    """

    def __init__(
        self,
        config: KubeConfig | None,
        *,
        user_agent: str,
        buffer: int,
        verify: Verify,
        decompress: bool = True,
        exempt: str = KUBE_SYSTEM,
    ) -> None:
        self._credentials = Credentials(config)
        guard = config.policy.open_socket if config is not None else None
        self._sessions = Sessions(
            buffer=buffer, guard=guard, verify=verify, decompress=decompress, exempt=exempt
        )
        # Others that aiohttp offers depend on what is installed.
        self._own_headers = {"User-Agent": user_agent}
        if not decompress:
            self._own_headers["Accept-Encoding"] = "gzip"
        self._refuses = False

    def use(self, config: KubeConfig | None) -> None:
        """Use other access data for the same API server from now on; open requests continue."""
        self._credentials.use(config)

    def refuse(self) -> None:
        """Refuse every request from now on."""
        self._refuses = True

    async def close(self) -> None:
        """Close every connection; the next request opens new ones."""
        await self._sessions.close()

    async def send(self, call: Call, limits: Limits) -> HttpResponse:
        """Send a request; see `Transport.send`."""
        connection = await self._credentials.connection()
        response = await self._send(call, limits, connection)
        if response.status == 401:  # noqa: PLR2004 -- HTTP
            # Tokens expire and are rotated: reload them, once per request (rule W19).
            response.release()
            await self._credentials.refused(connection)
            connection = await self._credentials.connection()
            response = await self._send(call, limits, connection)
        return HttpResponse(response, connection)

    async def _send(
        self, call: Call, limits: Limits, connection: Connection
    ) -> aiohttp.ClientResponse:
        if self._refuses:
            raise Unreachable(0, "Unreachable", "the client of this cluster is closed")
        session = self._sessions.get(alone=call.alone)
        require_lease(call.method)
        headers = {**connection.headers_as(acting_user()), **self._own_headers, **call.headers}
        try:
            return await session.request(
                call.method,
                connection.host + call.path,
                params=call.query,
                data=call.body,
                headers=headers,
                timeout=_timeout(limits),
                allow_redirects=False,  # no API server redirects; something else might (rule S7)
                ssl=connection.ssl if connection.ssl is not None else True,
                proxy=connection.proxy,
                server_hostname=connection.server_hostname,
            )
        except (aiohttp.ClientError, TimeoutError, ValueError) as e:
            raise unreachable_error(e) from e
        except RuntimeError as e:
            if session.closed:  # the cluster left, or was replaced, during this request
                raise unreachable_error(e) from e
            raise


class HttpResponse:
    """A response over HTTP; see `Response`.

    Args:
        response: as aiohttp has it.
        connection: what the request was sent with.
    """

    def __init__(self, response: aiohttp.ClientResponse, connection: Connection) -> None:
        self._response = response
        self._connection = connection

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names in any case."""
        return self._response.headers

    @property
    def method(self) -> str:
        """The method of the request."""
        return self._response.method

    @property
    def path(self) -> str:
        """The path of the request, unescaped."""
        return self._response.url.path

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has come and was read."""
        return self._response.content.at_eof()

    def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it comes; see `Response.chunks`."""
        return _Chunks(self._response.content)

    def explain(self, error: KubeError) -> None:
        """Say of a 401 that the token has expired."""
        explain_refusal(error, self._connection)

    def keep_alive(self) -> None:
        """Let the kernel probe the peer."""
        connection = self._response.connection
        transport = connection.transport if connection is not None else None
        sock = transport.get_extra_info("socket") if transport is not None else None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):  # not every system has them all
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def release(self) -> None:
        """Keep the connection of a response that came to its end; close any other."""
        self._response.release()

    def close(self) -> None:
        """Close the connection."""
        self._response.close()


class _Chunks:
    """An iterator, no generator: it needs no closing when its reader gives up."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await self._content.readany()
        except aiohttp.SocketTimeoutError as e:
            raise Idle(failure_text(e)) from e
        except (aiohttp.ClientError, TimeoutError) as e:
            raise BrokenOff(failure_text(e)) from e
        if not chunk:
            raise StopAsyncIteration
        return chunk


def _timeout(limits: Limits) -> aiohttp.ClientTimeout:
    total, connect, idle = (
        each.total_seconds() if each is not None else None
        for each in (limits.total, limits.connect, limits.idle)
    )
    return aiohttp.ClientTimeout(total=total, sock_connect=connect, sock_read=idle)
