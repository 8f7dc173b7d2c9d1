"""Pushes labelled ConfigMaps of one cluster to all others, and keeps them the same there.

FLEETBUS_EXAMPLE_HUB names the cluster they come from. The label is the mark: whatever carries it
in another cluster is a copy, and goes when it has no original.
"""

import asyncio
import logging
import os
from datetime import timedelta

import fleetbus

HUB = os.environ.get("FLEETBUS_EXAMPLE_HUB", "cluster1")
MAPS = "v1/configmaps"
LABEL, VALUE = "example.io/propagate", "true"
log = logging.getLogger(__name__)
AGAIN = timedelta(seconds=float(os.environ.get("FLEETBUS_EXAMPLE_AGAIN_SECONDS", "15")))

sync = fleetbus.Controller("sync-local-to-remote", follow_fleet=True)
sync.watch(MAPS, clusters=[HUB], selector=f"{LABEL}={VALUE}")


def original(
    _copy: fleetbus.Object | None, request: fleetbus.Request, _fleet: fleetbus.Fleet
) -> list[fleetbus.Request]:
    """A change of a copy, in any cluster, wakes the original of its name."""
    return [sync.request(HUB, request.namespace, request.name)]


sync.watch(
    MAPS,
    clusters=lambda cluster: cluster.name != HUB,
    selector=f"{LABEL}={VALUE}",
    map=original,
)


def is_marked(config_map: fleetbus.Object | None) -> bool:
    labels: fleetbus.Object = (config_map["metadata"].get("labels") if config_map else None) or {}
    return labels.get(LABEL) == VALUE


@sync.reconcile
async def push(request: fleetbus.Request, fleet: fleetbus.Fleet) -> fleetbus.Result | None:
    source = await fleet.cluster(HUB).live.get(MAPS, request.namespace, request.name)
    source = source if is_marked(source) else None
    members = [cluster.name for cluster in fleet.clusters() if cluster.name != HUB]
    calls = [push_to(fleet, name, request, source) for name in members]
    return None if all(await asyncio.gather(*calls)) else fleetbus.Result(requeue_after=AGAIN)


async def push_to(
    fleet: fleetbus.Fleet, name: str, request: fleetbus.Request, source: fleetbus.Object | None
) -> bool:
    """Bring one member in line; False if that failed, which stops no other."""
    try:
        member = fleet.cluster(name)
        config_map = await member.live.get(MAPS, request.namespace, request.name)
        if source is not None:
            await make(member, config_map, source)
        elif config_map is not None and is_marked(config_map):
            uid = config_map["metadata"]["uid"]
            await member.delete(MAPS, request.namespace, request.name, uid=uid)
    except (fleetbus.KubeError, fleetbus.NotEngaged, fleetbus.ClusterNotFound) as error:
        log.warning("%s is not in line yet: %s", name, error)
        return False
    return True


async def make(
    member: fleetbus.Cluster, config_map: fleetbus.Object | None, source: fleetbus.Object
) -> None:
    content: fleetbus.Object = {key: source.get(key) or {} for key in ("data", "binaryData")}
    if config_map is None:
        metadata = {key: source["metadata"][key] for key in ("name", "namespace")}
        metadata["labels"] = {LABEL: VALUE}
        copy = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await member.create(MAPS, copy | content)
    elif not is_marked(config_map) or content != {
        key: config_map.get(key) or {} for key in content
    }:
        metadata = config_map["metadata"]
        labels: fleetbus.Object = metadata.get("labels") or {}
        labelled = metadata | {"labels": labels | {LABEL: VALUE}}
        await member.update(MAPS, config_map | content | {"metadata": labelled})
