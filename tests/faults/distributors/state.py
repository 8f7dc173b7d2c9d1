"""The state at a moment: MultiClusterResources, their inventories, and the objects they own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from faults.distributors.settings import KINDS, NAMESPACE, TARGETS
from faults.distributors.world import World
from fleetbus.fleet.inventory_chunks import is_chunked, read_parts
from fleetbus.fleet.orphans import find_orphans
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES, OWNER_UID_LABEL, owner_of
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from support.rigs.fleet import Rig

Json = dict[str, Any]


@asynccontextmanager
async def hub_client(rig: Rig) -> AsyncGenerator[KubeClient]:
    """A client of the hub, as an administrator has it."""
    config = KubeConfig(rig.kubeconfig.read_text(), context=rig.shared.hub_context)
    async with KubeClient(config) as client:
        yield client


async def read_state(world: World, client: KubeClient) -> Json:
    """Read everything that the checks compare.

    Raises:
        FleetbusError: a chunk is missing, or the snapshot cannot be read.
    """
    clusters = {
        cluster["metadata"]["name"]: cluster["metadata"].get("labels", {})
        for cluster in world.hub.shared(CLUSTER_RESOURCE)
    }
    resources = [
        await _resource(resource, client) for resource in world.hub.list(MULTI_CLUSTER_RESOURCES)
    ]
    orphans = await find_orphans(world.rig.reader, client, [*clusters])
    names = {server: name for name, server in world.names.items() if name in clusters}
    return {
        "resources": resources,
        "clusters": clusters,
        "objects": [obj for server in TARGETS for obj in _objects(world, server, names)],
        "orphans": [[orphan.cluster, orphan.kind, orphan.name] for orphan in orphans],
    }


async def _resource(resource: Json, client: KubeClient) -> Json:
    metadata: Json = resource["metadata"]
    status: Json = resource.get("status") or {}
    clusters: list[Json] = status.get("clusters") or []
    return {
        "name": metadata["name"],
        "uid": metadata["uid"],
        "spec": resource["spec"],
        "generation": metadata["generation"],
        "isDeleting": "deletionTimestamp" in metadata,
        "observed": status.get("observedGeneration"),
        "held": status.get("held"),
        "states": {
            cluster["name"]: f"{cluster['state']}/{cluster.get('reason', '')}"
            for cluster in clusters
        },
        "inventory": [list(place) for place in await _inventory(status, client)],
        "isChunked": is_chunked(status),
    }


async def _inventory(status: Json, client: KubeClient) -> list[tuple[str, str, str]]:
    parts: list[Mapping[str, Any]] = [status.get("intent") or {}]
    if is_chunked(status):
        parts = [*await read_parts(client, NAMESPACE, status)]
    places: list[tuple[str, str, str]] = []
    for inventory_part in parts:
        objects: list[Json] = inventory_part.get("objects", [])
        for entry in inventory_part.get("clusters", []):
            indexes = entry.get("objects", range(len(objects)))
            places += [
                (entry["name"], objects[index]["kind"], objects[index]["name"]) for index in indexes
            ]
    return places


def _objects(world: World, server: str, names: Mapping[str, str]) -> list[Json]:
    objects: list[Json] = []
    for kind, resource in KINDS.items():
        for obj in world.rig.clusters[server].shared(resource):
            metadata = obj["metadata"]
            if metadata.get("namespace") != NAMESPACE or metadata["name"] == "default":
                continue
            owner = owner_of({**obj})
            objects.append(
                {
                    "server": server,
                    "cluster": names.get(server, ""),
                    "kind": kind,
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "owner": metadata.get("labels", {}).get(OWNER_UID_LABEL, ""),
                    "target": owner.target if owner else "",
                    "data": obj.get("data", {}),
                }
            )
    return objects
