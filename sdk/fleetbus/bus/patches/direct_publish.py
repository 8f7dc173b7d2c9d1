"""Publishes at once, or not at all (rule B6).

nats-py keeps what is published while it reconnects, and sends it afterwards. A request for an API
server must not be kept: whoever asked has given up by then, and a write would come out of nowhere.
It also saves the turn of nats-py's flusher.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client

_NOT_SENT_LOW: Final = "TCP_NOTSENT_LOWAT"


class DirectPublishClient(Client):
    """nats-py's client, which can publish without a buffer of its own."""

    _bounded_writer: object = None

    def publish_directly(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Write a message to the connection, after everything that waits; False if there is none.

        Args:
            subject: one of ours, which needs no check.
            payload: at most the server's `max_payload`.
            reply: where answers go.
        """
        if not self.is_connected or self._transport is None:
            return False
        if self._pending:
            self._transport.writelines(self._pending[:])
            self._pending = []
            self._pending_data_size = 0
        line = f"PUB {subject} {reply} {len(payload)}\r\n".encode()
        self._transport.write(b"".join((line, payload, b"\r\n")))
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += len(payload)
        return True

    async def drained(self, limit: int) -> None:
        """Wait until the connection has at most about this many bytes that are not sent yet.

        Args:
            limit: bytes; the same each time.
        """
        # A websocket of nats-py has neither writer nor limits.
        writer: Any = getattr(self._transport, "_io_writer", None)
        if writer is not None and writer is not self._bounded_writer:
            self._bounded_writer = writer
            writer.transport.set_write_buffer_limits(high=limit)
            sock = writer.get_extra_info("socket")
            if sock is not None and hasattr(socket, _NOT_SENT_LOW):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, _NOT_SENT_LOW), limit)
        if writer is not None:
            with suppress(OSError, asyncio.IncompleteReadError):
                await writer.drain()
