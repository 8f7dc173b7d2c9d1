"""Copies config maps from A to B as carelessly as it can be done; a module for the reconciler.

It believes the snapshot, and takes a copy away whose source the snapshot says is not there.
`COPIER_SOURCE` and `COPIER_TARGET` name other clusters, `COPIER_SELECTOR` says which config maps.
The file that `COPIER_LOG` names, if any, gets a line for each run: name, start, end.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import fleetbus

MAPS = "v1/configmaps"
SOURCE, TARGET = os.environ.get("COPIER_SOURCE", "a"), os.environ.get("COPIER_TARGET", "b")
_log = os.environ.get("COPIER_LOG")
copier = fleetbus.Controller("copier")
copier.watch(MAPS, clusters=[SOURCE], selector=os.environ.get("COPIER_SELECTOR", ""))
copier.watch_owned(MAPS, clusters=[TARGET], owner_kind="ConfigMap")


@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    """Make the copy like its source."""
    started = time.time()
    place = (MAPS, request.namespace, request.name)
    source = await fleet.cluster(SOURCE).get(*place)
    target = fleet.cluster(TARGET)
    found = await target.live.get(*place)
    if source is None:
        if found is not None:
            await target.delete(*place, uid=found["metadata"]["uid"])
    elif found is None:
        metadata = {key: source["metadata"][key] for key in ("name", "namespace")}
        made = {**source, "metadata": metadata}
        await target.create(MAPS, fleetbus.set_owner(made, fleetbus.Owner.of(source, SOURCE)))
    elif found["data"] != source["data"]:
        await target.update(MAPS, found | {"data": source["data"]})
    _note(request.name, started)


def _note(name: str, started: float) -> None:
    if _log:
        with Path(_log).open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, started, time.time()]) + "\n")
