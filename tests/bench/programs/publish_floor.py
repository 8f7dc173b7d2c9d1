"""Publish ready made messages through the window: what the bus takes. Prints the seconds.

python tests/run.py bench.programs.publish_floor NATS_URL OBJECTS
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

from bench.rig.pods import pod
from fleetbus.bus.acks import Ack
from fleetbus.bus.connection import connected
from fleetbus.bus.window import open_window

_PATIENCE = timedelta(minutes=3)


async def run(nats_url: str, objects: int) -> None:
    body = pod(1, 1)

    def settle(_: Ack) -> None:
        pass

    async with connected(nats_url, name="floor") as link, open_window(link) as window:
        begun = time.perf_counter()
        for index in range(objects):
            name = f"pod-{index}"
            subject = f"fleetbus.events.eu1.core.pods.ns.{name}.listed"
            await window.publish(subject, body, {"Nats-Msg-Id": name}, settle)
        await window.drain(_PATIENCE)
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
