"""A workaround for nats-py 2.16, which leaks tasks when a reconnect breaks half-way.

`Client._attempt_reconnect` starts the ping and flush tasks of a connection, and when its first
writes fail goes on to the next attempt, which starts new ones without stopping the old. Each server
that is killed at that moment leaves two tasks behind for the life of the process, one of them a
second ping task that counts the pongs of the other as its own.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client


def cancel_abandoned_tasks(nc: Client) -> None:
    """Cancel the tasks of a failed attempt; to be called by the client's `error_cb`."""
    of_client = vars(nc)  # there is no public access
    if asyncio.current_task() is not of_client["_reconnection_task"]:
        return
    for name in ("_reading_task", "_ping_interval_task", "_flusher_task"):
        task: asyncio.Task[None] | None = of_client[name]
        if task is not None:
            task.cancel()
