"""Prints one line for each change in the fleet; knows NATS and msgpack, nothing of fleetbus."""

import asyncio
import contextlib
import os
import sys
from typing import Any, cast

import msgpack
import nats

FILTER = sys.argv[1] if len(sys.argv) > 1 else "fleetbus.events.>"


def order_of(event: dict[str, Any]) -> tuple[int, int, str]:
    """Greater is newer, deletions included; a resourceVersion is a number of up to 128 bits."""
    version = event["resourceVersion"]
    return (event["incarnation"]["number"], len(version), version)


class Trouble:
    """Tells once that NATS is away; the client tries again by itself, and would tell each time."""

    def __init__(self) -> None:
        self._is_reported = False

    async def tell(self, error: Exception):
        if not self._is_reported:
            print("waiting for NATS:", error or type(error).__name__, file=sys.stderr, flush=True)
        self._is_reported = True

    async def forget(self):
        self._is_reported = False


async def main():
    trouble = Trouble()
    connection = await nats.connect(
        os.environ.get("NATS_URL", "nats://127.0.0.1:4222"),
        error_cb=trouble.tell,
        reconnected_cb=trouble.forget,
        max_reconnect_attempts=-1,  # the default gives up after two minutes
    )
    messages = await connection.jetstream().subscribe(
        FILTER, stream="FLEETBUS_EVENTS", ordered_consumer=True
    )
    newest: dict[tuple[str, ...], Any] = {}  # keep it as long as you may be asked about the object
    async for message in messages.messages:
        if (message.headers or {}).get("fleetbus-format") != "1":
            print("skipped", message.subject, file=sys.stderr)
            continue
        event: dict[str, Any] = cast("Any", msgpack).unpackb(message.data)  # it has no types
        if event["type"] != "event.v1":
            continue
        if event["cluster"] != message.subject.split(".")[2]:
            # Rights are given by subject: whoever wrote this has none for that cluster.
            print("skipped", message.subject, file=sys.stderr)
            continue
        place = tuple(event[part] for part in ("cluster", "group", "resource", "namespace", "name"))
        if order_of(event) <= newest.get(place, (0, 0, "")):
            continue  # a repeat, or a late arrival
        newest[place] = order_of(event)
        print(event["verb"], *place, event["resourceVersion"], flush=True)


with contextlib.suppress(KeyboardInterrupt):
    asyncio.run(main())
