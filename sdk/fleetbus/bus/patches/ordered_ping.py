"""Sends a PING after everything that was sent before it, as `flush` of nats-py 2.16 promises.

nats-py writes the PING at once, past the subscriptions and messages that wait for its flusher. So
the answer to it, which `flush` waits for, may come before the server has received them. And where
the answer comes after `flush` has given up, it ends the task that reads from the connection.
"""

from __future__ import annotations

import asyncio
from typing import cast

import nats.errors
from nats.aio.client import Client


class OrderedPingClient(Client):
    """nats-py's client, whose `flush` returns when the server has received what was sent."""

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        if self.is_connected and self._pending and self._transport is not None:
            self._transport.writelines(self._pending[:])
            self._pending = []
            self._pending_data_size = 0
        await super()._send_ping(future)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.Future()
        await super()._process_pong()

    async def ping(self, within: float) -> bool:
        """Ask the server for an answer to everything so far.

        Args:
            within: seconds.

        Returns:
            Whether it has come; False also if there is no connection.
        """
        if not self.is_connected or self._transport is None:
            return False
        try:
            await self.flush(cast("int", within))  # only compared, and waited for
        except nats.errors.Error:
            return False
        return True
