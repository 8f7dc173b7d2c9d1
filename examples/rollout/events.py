"""Prints what the distributor publishes, one line each; knows NATS, nothing of fleetbus.

python events.py [SUBJECT]
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

ADDRESS = os.environ.get("NATS_URL", "nats://127.0.0.1:4222")
STREAM = "FLEETBUS_DISTRIBUTION"
DURABLE = os.environ.get("SUBSCRIBER_DURABLE", "")  # one that the chart made for us
INBOX = os.environ.get(
    "SUBSCRIBER_INBOX_PREFIX", "_INBOX"
)  # the chart's users may read only theirs


async def read(client: Client, subject: str) -> AsyncGenerator[Msg]:
    """Yield what is stored, then what comes."""
    stream = client.jetstream()
    if not DURABLE:  # from the beginning of the stream, each time
        subscription = await stream.subscribe(subject, stream=STREAM, ordered_consumer=True)
        async for message in subscription.messages:
            yield message
        return
    bound = await stream.pull_subscribe_bind(durable=DURABLE, stream=STREAM)
    while True:
        with contextlib.suppress(nats.errors.TimeoutError):
            for message in await bound.fetch(100, timeout=5):
                yield message
                await message.ack()


async def follow(subject: str):
    async with await nats.connect(ADDRESS, inbox_prefix=INBOX.encode()) as client:
        async for message in read(client, subject):
            event = json.loads(message.data)
            where = event.get("cluster", event.get("wave", "-"))
            name = f"{event['namespace']}/{event['name']}"
            print(event["event"], name, where, event.get("message", ""), flush=True)
            for affected in event.get("objects", []):
                field = "".join(
                    f" {affected[key]}" for key in ("field", "manager") if key in affected
                )
                print("   ", affected["object"] + field, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        raise SystemExit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(follow(sys.argv[1] if len(sys.argv) > 1 else "fleetbus.distribution.>"))
