"""A NATS that gives a watcher no more than its rights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from fleetbus_devfleet.processes.children import Child
from fleetbus_devfleet.processes.servers import find_nats_server
from support.eventually import eventually

RESTRICTED = """
listen: 127.0.0.1:-1
ports_file_dir: "{folder}"
jetstream {{ store_dir: "{folder}/store" }}
authorization {{
  users: [
    {{ user: admin, password: p }}
    {{ user: w, password: p, permissions: {{
        publish: ["fleetbus.events.{cluster}.>", "fleetbus.epochs.{cluster}.>",
                  "fleetbus.status.{cluster}.>", "$KV.FLEETBUS_STATE.{cluster}.>",
                  "$JS.API.DIRECT.GET.KV_FLEETBUS_STATE.$KV.FLEETBUS_STATE.{cluster}.>",
                  "$JS.API.DIRECT.GET.KV_FLEETBUS_STATE.$KV.FLEETBUS_STATE._hub.{cluster}.>",
                  "$JS.API.DIRECT.GET.FLEETBUS_EVENTS.fleetbus.status.{cluster}.>"],
        subscribe: ["_INBOX.watcher.{cluster}.>", "fleetbus.control.{cluster}"] }} }}
    {{ user: pool, password: p, permissions: {{
        publish: {{
          allow: ["fleetbus.events.>", "fleetbus.epochs.>", "fleetbus.status.>",
                  "$KV.FLEETBUS_STATE.>", "$JS.API.DIRECT.GET.KV_FLEETBUS_STATE",
                  "$JS.API.DIRECT.GET.KV_FLEETBUS_STATE.>",
                  "$JS.API.DIRECT.GET.FLEETBUS_EVENTS.fleetbus.status.>"],
          deny: ["$KV.FLEETBUS_STATE._hub.>", "$KV.FLEETBUS_STATE._controllers.>"] }},
        subscribe: ["_INBOX._pool.>", "fleetbus.control.*", "$KV.FLEETBUS_STATE._pool.>"] }} }}
  ]
}}
"""


@asynccontextmanager
async def restricted_server(folder: Path, cluster: str = "eu1") -> AsyncGenerator[str]:
    """A NATS whose user `w` has the rights of a watcher of one cluster, and `pool` those of a
    watcher of the pool (S3); yields its address."""
    config = folder / "nats.conf"
    config.write_text(RESTRICTED.format(folder=folder, cluster=cluster))
    child = Child("nats", [find_nats_server(), "-c", config], log=folder / "log")
    try:
        yield (await eventually(lambda: _address(folder))).removeprefix("nats://")
    finally:
        await child.stop()


def _address(folder: Path) -> str:
    for path in folder.glob("*.ports"):
        with contextlib.suppress(json.JSONDecodeError):  # it is being written
            return str(json.loads(path.read_text())["nats"][0])
    return ""
