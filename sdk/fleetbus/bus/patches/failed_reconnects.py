"""A workaround for nats-py 2.16, which leaks what a failed attempt to reconnect has opened.

`Client._attempt_reconnect` opens a connection and starts its ping and flush tasks. When the
handshake or the first writes fail it goes on to the next attempt, which opens new ones without
closing the old. Each server that is killed at that moment leaves behind a socket until the garbage
collector finds it, and two tasks for the life of the process, one of them a second ping task that
counts the pongs of the other as its own.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client
from nats.aio.transport import Transport


def close_failed_attempt(nc: Client) -> None:
    """Close the connection of a failed attempt; to be called by the client's `error_cb`."""
    of_client = vars(nc)  # there is no public access
    if asyncio.current_task() is not of_client["_reconnection_task"]:
        return
    for name in ("_reading_task", "_ping_interval_task", "_flusher_task"):
        task: asyncio.Task[None] | None = of_client[name]
        if task is not None:
            task.cancel()
    transport: Transport | None = of_client["_transport"]
    if transport is not None:
        transport.close()
