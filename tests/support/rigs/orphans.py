"""Objects that a hub has forgotten, and the snapshot that shows them."""

from __future__ import annotations

import copy
from typing import Any

import orjson

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.snapshot.records import ClusterRecord, ResourceRecord, ResourceState
from support.rigs.distributor import CONFIG_MAP, Rig
from support.stores.snapshot import Snapshot, Source

MAPS = "v1/configmaps"
T1 = {"name": "t1"}


def template(name: str) -> dict[str, Any]:
    copied = copy.deepcopy(CONFIG_MAP)
    copied["metadata"]["name"] = name
    return copied


async def restored(rig: Rig) -> None:
    """A hub that was restored from a backup of before `b` was placed."""
    rig.create(templates=[template("a")], placement={"clusters": [T1]})
    await rig.reconcile()
    backup = copy.deepcopy(rig.resource())
    rig.edit(templates=[template("a"), template("b")])
    await rig.reconcile()
    rig.hub.update(MULTI_CLUSTER_RESOURCES, {**rig.resource(), "spec": backup["spec"]})
    rig.hub.update_status(MULTI_CLUSTER_RESOURCES, {**rig.resource(), "status": backup["status"]})
    rig.restart()
    await rig.reconcile()


async def show(rig: Rig, *clusters: str) -> Snapshot:
    """Bring the ConfigMaps of clusters into the snapshot."""
    snapshot = Snapshot(rig.redis)
    for name in clusters:
        await snapshot.set_up(name)
        await snapshot.writer.put_cluster(
            name, ClusterRecord(name=name, uid=rig.clusters[name].uid, incarnation=1)
        )
        record = ResourceRecord(
            group="core", version="v1", plural="configmaps", state=ResourceState.SYNCED, epoch="1 1"
        )
        await snapshot.writer.put_resource_state(name, record)
        source = Source(cluster=name, resource="configmaps")
        for obj in rig.clusters[name].list(MAPS):
            metadata = obj["metadata"]
            body = orjson.dumps({"apiVersion": "v1", "kind": "ConfigMap", **obj})
            event = source.event(
                *("listed", metadata["name"], metadata["resourceVersion"]),
                uid=metadata["uid"],
                namespace=metadata["namespace"],
                body=body,
            )
            await snapshot.apply(event)
    return snapshot
