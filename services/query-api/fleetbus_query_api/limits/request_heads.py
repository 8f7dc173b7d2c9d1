"""Bounds what a client may hold before its request is known to anybody (rule A8).

uvicorn waits for the end of a request's head for ever, and keeps all of it in memory.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import structlog

from fleetbus_query_api.limits.large_answers import SlowReaderProtocol

log = structlog.get_logger()

HEAD_TIMEOUT: Final = timedelta(seconds=10)
"""For a client to send the head of a request, from the connection or the first byte on."""
MAX_HEAD: Final = 256 * 1024
"""Bytes after those that came at once; a thousand names of clusters are less."""
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n"


class GuardedProtocol(SlowReaderProtocol):
    """The protocol of uvicorn; disconnects clients whose request does not begin properly."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._start_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Start the timer for another request of the connection."""
        super().on_message_begin()
        self._end_head()
        self._start_head()

    def on_headers_complete(self) -> None:
        """Stop the timer: the request is known."""
        self._end_head()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Count what belongs to a head only."""
        head = self._head_timer
        super().data_received(data)
        if head is None or head is not self._head_timer:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            log.warning("large_head_refused", client=str(self.client))
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _start_head(self) -> None:
        self._head_bytes = 0
        seconds = HEAD_TIMEOUT.total_seconds()
        self._head_timer = self.loop.call_later(seconds, self._refuse_slow_head)

    def _end_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow_head(self) -> None:
        log.info("slow_head_disconnected", client=str(self.client))
        self.transport.abort()
