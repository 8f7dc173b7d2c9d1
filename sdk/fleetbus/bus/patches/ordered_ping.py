"""Sends a PING after everything that was sent before it, as `flush` of nats-py 2.16 promises.

nats-py writes the PING at once, past the subscriptions and messages that wait for its flusher. So
the answer to it, which `flush` waits for, may come before the server has received them.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client


class OrderedPingClient(Client):
    """nats-py's client, whose `flush` returns when the server has received what was sent."""

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        if self.is_connected and self._pending and self._transport is not None:
            self._transport.writelines(self._pending[:])
            self._pending = []
            self._pending_data_size = 0
        await super()._send_ping(future)
