"""Bounds the memory of large answers, however slowly clients read them (rule A8).

They are written in slices that wait for room in the connection, a client that takes too long for a
slice is disconnected, and the number of large answers at a time is limited.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleetbus_query_api.requests.kube_paths import is_list
from fleetbus_query_api.responses.problem import UnavailableProblem, render_problem

log = structlog.get_logger()

SLICE_TIMEOUT: Final = timedelta(seconds=5)
"""For a client to receive a slice; 100 KB/s is enough."""
MAX_LISTS: Final = 32
"""At a time; each holds a page of 16 MiB at most."""
_CAPACITY_TIMEOUT: Final = timedelta(seconds=10)
_LIST_PATHS: Final = (
    "/fleet/v1/resources/",
    "/fleet/v1/counts/",
    "/fleet/v1/where",
    "/fleet/v1/children/",
    "/fleet/v1/outliers/",
    "/fleet/v1/changes",
    "/fleet/v1/deleted/",
    "/fleet/v1/timeline/",
    "/v1/list",
)


class SlowReaderProtocol(HttpToolsProtocol):
    """The protocol of uvicorn; disconnects clients that do not receive what was written."""

    _timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Start the timer: the connection holds a slice that is not received."""
        super().pause_writing()
        self._timer = self.loop.call_later(SLICE_TIMEOUT.total_seconds(), self._disconnect)

    def resume_writing(self) -> None:
        """Stop the timer."""
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disconnect(self) -> None:
        log.warning("slow_client_disconnected", client=str(self.client))
        self.transport.abort()  # `close` would wait for the client


class ListConcurrency:
    """An ASGI middleware that limits lists in progress, from the request to the last byte.

    Args:
        app: the application behind it.
        patience: how long a list waits for others to end.
    """

    def __init__(self, app: ASGIApp, *, patience: timedelta = _CAPACITY_TIMEOUT) -> None:
        self._app = app
        self._patience = patience
        self._capacity = asyncio.Semaphore(MAX_LISTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass once there is capacity for its answer."""
        path = str(scope.get("path", ""))
        if not path.startswith(_LIST_PATHS) and not is_list(scope):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._patience.total_seconds()):
                await self._capacity.acquire()
        except TimeoutError:
            busy = UnavailableProblem(f"{MAX_LISTS} other lists are in progress; try again")
            await render_problem(path, busy)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._capacity.release()
