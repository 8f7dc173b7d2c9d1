"""Answers that cost bounded memory whoever reads them (rule A8).

They are written in slices that wait for room, a reader who takes too little for too long is cut
off, and so many large answers at most are under way at a time.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fleetbus_query_api.answers.errors import Unavailable
from fleetbus_query_api.answers.problem import render_problem

log = structlog.get_logger()

PATIENCE: Final = timedelta(seconds=5)
"""So long a reader may take for a slice; 100 KB/s is enough."""
LISTS_AT_ONCE: Final = 32
"""Each holds a page of 16 MiB at most."""
_WAIT: Final = timedelta(seconds=10)
_LISTS: Final = ("/fleet/v1/resources/", "/v1/list")


class ImpatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which cuts off whoever does not take what was written."""

    _cut: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Start the clock: the connection holds a slice that nobody takes."""
        super().pause_writing()
        self._cut = self.loop.call_later(PATIENCE.total_seconds(), self._cut_off)

    def resume_writing(self) -> None:
        """Stop it."""
        super().resume_writing()
        self._forgive()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop it for ever."""
        self._forgive()
        super().connection_lost(exc)

    def _forgive(self) -> None:
        if self._cut is not None:
            self._cut.cancel()
            self._cut = None

    def _cut_off(self) -> None:
        log.warning("slow_reader_cut_off", client=str(self.client))
        self.transport.abort()  # `close` would wait for the reader


class FewLists:
    """An ASGI middleware: so many lists at a time, from the question to the last byte.

    Args:
        app: what is behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._room = asyncio.Semaphore(LISTS_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, once there is room for its answer."""
        path = str(scope.get("path", ""))
        if not path.startswith(_LISTS):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(_WAIT.total_seconds()):
                await self._room.acquire()
        except TimeoutError:
            busy = Unavailable(f"{LISTS_AT_ONCE} other lists are being answered; ask again")
            await render_problem(path, busy)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._room.release()
