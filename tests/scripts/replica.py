"""One replica of a reconciler, in a process of its own; REPLICA_OPTIONS has its options as JSON.

It takes notes in a file, line by line, so that what it did is known however it ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import sys
import time
from datetime import timedelta
from typing import Any

import fleetbus
from fleetbus.process.health import Health
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs
from fleetbus.process.settings import ProviderSettings, SharedSettings, load_settings
from fleetbus.worker.connections import connect
from fleetbus.worker.host import run_controllers
from fleetbus.workqueue.queue import QueuePolicy

MAPS = "v1/configmaps"


def controller_of(options: dict[str, Any]) -> fleetbus.Controller:
    """Notes each run; sleeps as long as its object says, and then writes who was there."""
    controller = fleetbus.Controller("sharded", concurrency=4)
    controller.watch(MAPS, namespaces=["default"])
    path = pathlib.Path(options["notes"])

    def note(what: str, name: str, **more: object) -> None:
        line = {"replica": options["replica"], "what": what, "name": name, "at": time.time()}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | more) + "\n")

    @controller.reconcile
    async def work(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        cluster = fleet.cluster(request.cluster)
        found = await cluster.get(MAPS, request.namespace, request.name)
        data: dict[str, str] = (found or {}).get("data") or {}
        note("start", request.name)
        try:
            if "seconds" in data and "by" not in data:
                await asyncio.sleep(float(data["seconds"]))  # a slow reconcile
                patch = {"data": {"by": options["replica"]}}
                await cluster.patch(MAPS, request.namespace, request.name, patch)
        except BaseException:
            note("cut", request.name)
            raise
        note("end", request.name)

    return controller


async def main(options: dict[str, Any]) -> None:
    """Run until stopped."""
    set_up_logs("text", "warning")
    shared = load_settings(
        SharedSettings,
        nats_url=options["nats_url"],
        redis_url=options["redis_url"],
        providers=[
            ProviderSettings.model_validate(
                {"type": "kubeconfig", "paths": [options["kubeconfig"]]}
            )
        ],
    )
    policy = QueuePolicy(lease=timedelta(seconds=options["lease_seconds"]))

    async def host() -> None:
        async with connect(shared, name="replica") as connections, asyncio.TaskGroup() as group:
            group.create_task(connections.clusters.run(), name="clusters")
            hosting = run_controllers(
                [controller_of(options)], connections, Health(), policy=policy
            )
            group.create_task(hosting, name="controllers")

    await run_until_stopped(host=host())


if __name__ == "__main__":
    options = json.loads(os.environ["REPLICA_OPTIONS"])
    sys.exit(run_service("replica", lambda: main(options)))
