"""A worker's process whose event loop never goes on, while its heartbeat has a lease.

python tests/run.py scripts.stuck_heartbeat REDIS_URL
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

from redis.asyncio import Redis

from fleetbus.reconcile import Request
from fleetbus.workqueue import Add, Heartbeat, QueuePolicy, RedisQueue, connect_blocking


async def main(url: str) -> None:
    policy = QueuePolicy(lease=timedelta(milliseconds=600))
    queue = RedisQueue(Redis.from_url(url), "copier", policy=policy)
    await queue.add([Add(Request("copier", "c1", "ns", "a"))])
    client = connect_blocking(url, policy)
    async with Heartbeat(client, "copier", policy=policy, on_lost=print) as heartbeat:
        heartbeat.hold(await queue.take(1), at_most=timedelta(milliseconds=200))
        time.sleep(60)  # noqa: ASYNC251 -- it blocks the loop on purpose


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
