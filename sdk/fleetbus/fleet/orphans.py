"""Finds orphans: objects that carry our mark and that no intent names (rule D7).

A hub that was restored from a backup has forgotten what was placed after it; a finalizer that was
removed by hand leaves objects behind. They are found by comparing the snapshot with the
MultiClusterResources as they are now. Only an explicit command deletes them, one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

from fleetbus.errors import FleetbusError, MalformedOwner
from fleetbus.fleet.cached_reads import SNAPSHOT_FAILURE
from fleetbus.fleet.inventory_chunks import ChunkUnusable, check_format, is_chunked, read_parts
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.owned_objects.claim import Ownership, claim
from fleetbus.owned_objects.decision import Decision, RemovalPolicy, decide_removal
from fleetbus.owned_objects.executor import delete_exactly
from fleetbus.ownership import (
    MULTI_CLUSTER_RESOURCES,
    OWNER_UID_LABEL,
    Owner,
    owner_of,
)
from fleetbus.snapshot.reads.entries import Entry
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import store_errors
from fleetbus_proto.resources import CORE, Resource

_KIND: Final = "MultiClusterResource"
_CONTAINERS: Final = ("Namespace", "CustomResourceDefinition")
"""Kinds whose deletion deletes other people's objects too (rules D5, D10)."""
_REMOVAL: Final = RemovalPolicy(deletes={Ownership.OURS, Ownership.COPY}, heeds_pause=True)
_PAGE: Final = 500

Place: TypeAlias = tuple[str, str, str, str, str]
"""Cluster, group, kind, namespace, name."""


class NotAnOrphan(FleetbusError):
    """An object that must not be deleted as an orphan; the message says why."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that carries our mark and that no intent names."""

    cluster: str
    resource: Resource
    kind: str
    namespace: str
    name: str
    uid: str
    owner: Owner
    """The MultiClusterResource that it was written for."""

    def __str__(self) -> str:
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{self.kind} {name} of cluster {self.cluster}"


async def find_orphans(
    reader: SnapshotReader, hub: KubeClient, clusters: Sequence[str]
) -> list[Orphan]:
    """The orphans that the snapshot shows, by cluster, kind and name.

    The intents are read once more after the objects: each intent is recorded before its object is
    created (rule D2).

    Args:
        reader: the snapshot.
        hub: where the MultiClusterResources are.
        clusters: the clusters to search.

    Raises:
        KubeError: the hub cannot be read; nothing is known.
        StoreError: the store is away.
    """
    hub_id = await hub.accepted_uid()
    intents = await read_intents(hub)
    with store_errors(SNAPSHOT_FAILURE):
        suspects = [
            orphan
            async for orphan in _marked(reader, clusters)
            if orphan.owner.hub == hub_id and not intents.names(orphan)
        ]
    if not suspects:
        return []
    intents = await read_intents(hub)
    orphans = [suspect for suspect in suspects if not intents.names(suspect)]
    return sorted(
        orphans, key=lambda orphan: (orphan.cluster, orphan.kind, orphan.namespace, orphan.name)
    )


async def delete_orphan(orphan: Orphan, *, client: KubeClient, hub: KubeClient) -> bool:
    """Delete an orphan if live reads confirm that it is one; False if it is gone already.

    Args:
        orphan: one that was found.
        client: of its cluster, which has to be the accepted one.
        hub: where the MultiClusterResources are.

    Raises:
        NotAnOrphan: it was replaced, is not ours, is protected, or an intent names it.
        KubeError: the cluster or the hub refused or did not answer.
    """
    owner = replace(orphan.owner, hub=await hub.accepted_uid())
    owner = owner.on(orphan.cluster, await client.accepted_uid())
    live = await client.get(orphan.resource, orphan.namespace, orphan.name)
    if live is None:
        return False
    if problem := _why_kept(orphan, live, owner):
        raise NotAnOrphan(f"{orphan}: {problem}")
    if (await read_intents(hub)).names(orphan):
        raise NotAnOrphan(f"{orphan}: a MultiClusterResource names it")
    return await delete_exactly(client, orphan.resource, live)


def _why_kept(orphan: Orphan, live: Object, owner: Owner) -> str:
    """Why an object is not deleted; empty if it may be: same object, and the mark is ours."""
    if live["metadata"]["uid"] != orphan.uid:
        return "it was replaced by another object"
    if orphan.kind in _CONTAINERS:
        return f"deleting a {orphan.kind} deletes objects of others too; do that by hand"
    claimed = claim(live, owner)
    decision = decide_removal(live, claimed, _REMOVAL)
    if decision in (Decision.DELETE, Decision.WAIT):
        return ""
    if decision is Decision.FORGET:
        return "its marks are not ours, or do not agree"
    return claimed.message or f"it is {decision.lower()}"


async def _marked(reader: SnapshotReader, clusters: Sequence[str]) -> AsyncIterator[Orphan]:
    """Every object of the snapshot that was written for a MultiClusterResource."""
    served: dict[str, dict[str, Resource]] = {}
    for cluster in clusters:
        for resource in await reader.resources(cluster):
            by_cluster = served.setdefault(resource.key, {})
            by_cluster[cluster] = Resource(resource.group, resource.version, resource.plural)
    for key, by_cluster in served.items():
        async for entry in _pages(reader, list(by_cluster), key):
            if orphan := _read(entry, by_cluster[entry.cluster]):
                yield orphan


async def _pages(reader: SnapshotReader, clusters: Sequence[str], key: str) -> AsyncIterator[Entry]:
    labels = LabelSelector.parse(OWNER_UID_LABEL)
    query = ListQuery(clusters=clusters, resource=key, labels=labels, limit=_PAGE, count=False)
    async for page in reader.pages(query):
        for entry in page.entries:
            yield entry


def _read(entry: Entry, resource: Resource) -> Orphan | None:
    if not entry.body:
        return None
    try:
        obj = cast("Object", read_tree(entry.body))
        owner = owner_of(obj)
    except (AttributeError, MalformedOwner, TypeError, ValueError):
        # Nobody knows whose it is; what one member stores must not hide the orphans of all others.
        return None
    if owner is None or owner.kind != _KIND:
        return None
    place = (entry.namespace, entry.name, entry.uid)
    return Orphan(entry.cluster, resource, str(obj.get("kind", "")), *place, owner)


# --- intents ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Intents:
    """The intents of all MultiClusterResources."""

    places: frozenset[Place]
    unreadable: frozenset[str]
    """UIDs of those whose intent is malformed, or of a newer release: nothing of theirs is an
    orphan."""

    def names(self, orphan: Orphan) -> bool:
        """Whether an intent names an object, or may."""
        if orphan.owner.uid in self.unreadable:
            return True
        group = "" if orphan.resource.group == CORE else orphan.resource.group
        place = (orphan.cluster, group, orphan.kind, orphan.namespace, orphan.name)
        return place in self.places


async def read_intents(hub: KubeClient) -> Intents:
    """Read the intents from the hub.

    Raises:
        KubeError: the hub cannot be read.
    """
    places: set[Place] = set()
    unreadable: set[str] = set()
    for resource in await hub.list(MULTI_CLUSTER_RESOURCES):
        uid = str(resource["metadata"]["uid"])
        try:
            for part in await _parts_of(hub, resource):
                # In a thread, because there may be tens of thousands.
                places |= await asyncio.to_thread(_places_of, part)
        except (AttributeError, ChunkUnusable, IndexError, KeyError, TypeError):
            unreadable.add(uid)
    return Intents(frozenset(places), frozenset(unreadable))


async def _parts_of(hub: KubeClient, resource: Object) -> Sequence[Mapping[str, Any]]:
    status = cast("dict[str, Any]", resource.get("status") or {})
    check_format(status)
    if is_chunked(status):
        return await read_parts(hub, str(resource["metadata"]["namespace"]), status)
    return [cast("dict[str, Any]", status.get("intent") or {})]


def _places_of(intent: Mapping[str, Any]) -> set[Place]:
    """The places in an intent; a cluster-scoped object may have been given a namespace."""
    objects: list[dict[str, str]] = intent.get("objects", [])
    places: set[Place] = set()
    entries: list[dict[str, Any]] = intent.get("clusters", [])
    for entry in entries:
        indexes: Sequence[int] = entry.get("objects", range(len(objects)))
        for obj in [objects[index] for index in indexes]:
            group = obj["apiVersion"].rpartition("/")[0]
            for namespace in (obj["namespace"], ""):
                places.add((entry["name"], group, obj["kind"], namespace, obj["name"]))
    return places
