"""A cure for nats-py 2.16: a connection that breaks while it is made again leaves tasks behind.

`Client._attempt_reconnect` starts the pinger and the flusher of a connection, and when its
first writes fail goes on to the next attempt, whose own take their place unstopped. Each server
that is killed at that moment leaves two tasks for the life of the process, and a pinger more
that counts the pongs of the others as its own.
"""

from __future__ import annotations

import asyncio

from nats.aio.client import Client


def cancel_abandoned_tasks(nc: Client) -> None:
    """End the tasks of the attempt that failed; to be called by the client's `error_cb`."""
    of_client = vars(nc)  # nothing public tells
    if asyncio.current_task() is not of_client["_reconnection_task"]:
        return
    for name in ("_reading_task", "_ping_interval_task", "_flusher_task"):
        task: asyncio.Task[None] | None = of_client[name]
        if task is not None:
            task.cancel()
