"""The victim of the benchmark `rebuild`: it deletes each copy whose source the snapshot lacks."""

from __future__ import annotations

import fleetbus

MAPS = "v1/configmaps"
SOURCE, TARGET = "bench-0", "bench-1"

copier = fleetbus.Controller("copier")
copier.watch(MAPS, clusters=[SOURCE], selector="copied=yes")
copier.watch_owned(MAPS, clusters=[TARGET], owner_kind="ConfigMap")


@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
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
