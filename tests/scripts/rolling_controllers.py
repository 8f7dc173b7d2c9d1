"""Controllers that take notes; ROLLING_SET has them: {name: {"resource": …, "selector": …}}.

Each run adds a line to ROLLING_NOTES: the controller, the object, and the version that it read.
"""

from __future__ import annotations

import json
import os

import fleetbus


def _make(name: str, resource: str, selector: str) -> fleetbus.Controller:
    controller = fleetbus.Controller(name, concurrency=8)
    controller.watch(resource, selector=selector)
    notes = os.open(os.environ["ROLLING_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @controller.reconcile
    async def note(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
        found = await fleet.cluster(request.cluster).get(resource, request.namespace, request.name)
        version = found["metadata"]["resourceVersion"] if found else ""
        line = json.dumps([name, resource, request.name, version])
        os.write(notes, line.encode() + b"\n")  # in a single write, so that no kill tears it

    del note
    return controller


for _name, _options in json.loads(os.environ["ROLLING_SET"]).items():
    globals()[f"controller_{_name}"] = _make(_name, **_options)
