"""Controllers that take notes; ROLLING_SET has them, by name.

Each run adds a line to ROLLING_NOTES: the controller, the object, and the version that it read.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time

import fleetbus

_SLOW_SHARE = 0.15
_SLOW_SECONDS = 1.0
_FRESH_SECONDS = 15.0
"""Age of a change up to which a map may be slow: a look at all that is known ends soon."""


async def _dawdle(
    object: fleetbus.Object | None,  # noqa: A002 -- the field's word
    request: fleetbus.Request,
    fleet: fleetbus.Fleet,
) -> list[fleetbus.Request]:
    del fleet
    changed_at = float(object["metadata"]["labels"]["at"]) if object else 0.0
    if time.time() - changed_at < _FRESH_SECONDS and random.random() < _SLOW_SHARE:
        await asyncio.sleep(random.uniform(0, _SLOW_SECONDS))  # a map that is slow
    return [request]


def _make(name: str, resource: str, selector: str, *, is_slow: bool) -> fleetbus.Controller:
    controller = fleetbus.Controller(name, concurrency=8)
    controller.watch(resource, selector=selector, map=_dawdle if is_slow else None)
    notes = os.open(os.environ["ROLLING_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @controller.reconcile
    async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        obj = await fleet.cluster(request.cluster).get(resource, request.namespace, request.name)
        version = obj["metadata"]["resourceVersion"] if obj else ""
        line = json.dumps([name, resource, f"{request.cluster}/{request.name}", version])
        os.write(notes, line.encode() + b"\n")  # in a single write, so that no kill tears it

    del note
    return controller


for _name, _options in json.loads(os.environ["ROLLING_SET"]).items():
    globals()[f"controller_{_name}"] = _make(_name, **_options)
