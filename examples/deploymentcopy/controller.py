"""Copies the Deployments of one namespace from a source cluster to a destination cluster.

The clusters are named by FLEETBUS_EXAMPLE_SOURCE and FLEETBUS_EXAMPLE_DESTINATION.
"""

import os

import fleetbus

SOURCE = os.environ.get("FLEETBUS_EXAMPLE_SOURCE", "cluster1")
DESTINATION = os.environ.get("FLEETBUS_EXAMPLE_DESTINATION", "cluster2")
NAMESPACE = "default"
DEPLOYMENTS = "apps/v1/deployments"

copier = fleetbus.Controller("deploymentcopy")
copier.watch(DEPLOYMENTS, clusters=[SOURCE], namespaces=[NAMESPACE])
copier.watch_owned(DEPLOYMENTS, clusters=[DESTINATION], owner_kind="Deployment")


@copier.reconcile
async def copy(request: fleetbus.Request, fleet: fleetbus.Fleet) -> None:
    # Both are read from their API servers: nothing is deleted because a cache lacks it.
    source = await fleet.cluster(SOURCE).live.get(DEPLOYMENTS, NAMESPACE, request.name)
    target = fleet.cluster(DESTINATION)
    existing = await target.live.get(DEPLOYMENTS, NAMESPACE, request.name)
    if source is None:
        await remove(target, existing)
    elif existing is None:
        await target.create(DEPLOYMENTS, marked_copy(source))
    elif not fleetbus.is_owned_by(existing, source["metadata"]["uid"]):
        await replace_or_refuse(target, source, existing)
    elif existing["spec"] != source["spec"]:
        await target.update(DEPLOYMENTS, existing | {"spec": source["spec"]})


async def remove(target: fleetbus.Cluster, obj: fleetbus.Object | None) -> None:
    if obj and is_ours(obj):
        uid = obj["metadata"]["uid"]
        await target.delete(DEPLOYMENTS, NAMESPACE, obj["metadata"]["name"], uid=uid)


async def replace_or_refuse(
    target: fleetbus.Cluster, source: fleetbus.Object, obj: fleetbus.Object
) -> None:
    """The copy of a former source of this name goes; a stranger stays, and is reported."""
    name = obj["metadata"]["name"]
    if not is_ours(obj):
        raise fleetbus.TerminalError(f"{target.name}: {NAMESPACE}/{name} exists and is not ours")
    await remove(target, obj)
    await target.create(DEPLOYMENTS, marked_copy(source))


def is_ours(obj: fleetbus.Object) -> bool:
    try:
        owner = fleetbus.owner_of(obj)
    except fleetbus.MalformedOwner as error:
        name = obj["metadata"]["name"]
        raise fleetbus.TerminalError(f"{DESTINATION}: {NAMESPACE}/{name}: {error}") from error
    return owner is not None and owner.cluster_name == SOURCE and owner.kind == "Deployment"


def marked_copy(source: fleetbus.Object) -> fleetbus.Object:
    identity = {key: source["metadata"][key] for key in ("name", "namespace")}
    metadata = identity | {"labels": source["metadata"].get("labels", {})}
    copy = source | {"metadata": metadata}
    copy.pop("status", None)
    return fleetbus.own(copy, source, SOURCE)
