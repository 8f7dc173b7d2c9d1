"""The fleet as a reconciler sees it: its clusters, and reads over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.leaving import NAMESPACE
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import (
    ClusterNotFound,
    KubeError,
    NotEngaged,
    NotSynced,
    SnapshotBehind,
)
from fleetbus.fleet.cached_reads import (
    SNAPSHOT_FAILURE,
    CachedReads,
    ClusterObject,
    list_objects,
    unsynced_everywhere,
)
from fleetbus.fleet.cluster import Cluster, as_resource
from fleetbus.kube.client import Object
from fleetbus.kube.events import EventRecorder
from fleetbus.kube.selectors import LabelSelector
from fleetbus.ownership import own
from fleetbus.run import in_thread
from fleetbus.run.awaited import must_be_awaited
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import Freshness
from fleetbus.store.connection import store_errors
from fleetbus_proto.resources import Resource

T = TypeVar("T")

_LEFT_OUT: Final = (NotSynced, NotEngaged, ClusterNotFound, KubeError)
"""Errors that leave a cluster out of a result over clusters."""


class Fleet:
    """All clusters; passed to reconcile functions.

    Args:
        clusters: the registry of this process.
        reader: the snapshot.
        hub_namespace: the namespace of fleetbus on the hub.
    """

    def __init__(
        self, clusters: Clusters, reader: SnapshotReader, *, hub_namespace: str = NAMESPACE
    ) -> None:
        self.hub_namespace = hub_namespace
        self._clusters = clusters
        self._reader = reader
        self._events = EventRecorder()

    @property
    def hub(self) -> str:
        """Name of the hub; empty if the fleet has none."""
        return self._clusters.hub

    @property
    def is_known(self) -> bool:
        """Whether every provider has reported its clusters; until then absence means nothing."""
        return self._clusters.is_known

    def has(self, name: str) -> bool:
        """Whether this process knows a cluster of this name."""
        return self._clusters.get(name) is not None

    @property
    def reader(self) -> SnapshotReader:
        """The snapshot itself, for queries that span clusters."""
        return self._reader

    def clusters(self, selector: str = "") -> list[ClusterInfo]:
        """Return the clusters whose labels match, by name."""
        matches = LabelSelector.parse(selector).matches
        return [info for info in self._clusters.all() if matches(info.labels)]

    def cluster(self, name: str) -> Cluster:
        """One cluster.

        Raises:
            ClusterNotFound: it is not in the fleet.
            NotEngaged: it cannot be used yet; the request is retried.
        """
        client = self._clusters.client(name)
        info = self._clusters.get(name)
        if info is None:
            raise ClusterNotFound(f"cluster {name!r} is not in the fleet")
        return Cluster(info, self._reader, client, self._events)

    async def aliases(self, name: str) -> Sequence[str]:
        """Return other names in the fleet for the same cluster, which are a mistake.

        Raises:
            NotAccepted: the store that has them does not answer.
        """
        return await self._clusters.aliases(name)

    async def accepted_uid(self, name: str) -> str:
        """Return the accepted UID of a cluster's namespace kube-system; empty if unknown.

        Raises:
            NotAccepted: the store does not answer, or an older name stands for the same cluster.
        """
        return await self._clusters.accepted_uid(name)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an async method in the event loop and wait for it; for plain functions.

        `pod = fleet.wait(fleet.cluster("a").get("v1/pods", "default", "web"))`; an `async def`
        reconcile function awaits instead.

        Raises:
            RunStopped: the run's time is over, its lease is lost or the process ends.
            RuntimeError: this is not the thread of a plain reconcile function.
        """
        return in_thread.wait(work)

    def own(self, child: Object, owner: Object, cluster: str) -> Object:
        """Put the mark of an owner on a child, in place, and return it; see `fleetbus.own`.

        Args:
            child: the object to be written, in whatever cluster.
            owner: an object as it was read.
            cluster: the name of the cluster that the owner lives in.
        """
        return own(child, owner, cluster)

    @must_be_awaited
    async def get_all(
        self, resource: str | Resource, namespace: str, name: str
    ) -> dict[str, dict[str, Any]]:
        """Return the object of this name from every cluster that has it, from the snapshot.

        Clusters that are not synced or not engaged are left out; `freshness` names them.

        Raises:
            NotSynced: no cluster has a complete list of the resource yet, or none watches it.
            SnapshotBehind: as for `Cluster.get`.
        """
        names = [info.name for info in self._clusters.all()]
        # All at once: they share round trips to the store, and one that waits delays no other.
        answers = await asyncio.gather(
            *(self._get_of(cluster, as_resource(resource), namespace, name) for cluster in names),
            return_exceptions=True,
        )
        objects: dict[str, Object] = {}
        for cluster, answer in zip(names, answers, strict=True):
            if isinstance(answer, BaseException):
                if isinstance(answer, SnapshotBehind) or not isinstance(answer, _LEFT_OUT):
                    raise answer
            elif answer is not None:
                objects[cluster] = answer
        # A resource that nobody watches is a mistake: an empty result would hide it.
        unsynced = [answer for answer in answers if isinstance(answer, NotSynced)]
        if unsynced and all(isinstance(answer, BaseException) for answer in answers):
            raise unsynced[0]
        return objects

    async def _get_of(
        self, cluster: str, resource: Resource, namespace: str, name: str
    ) -> Object | None:
        return await self.cluster(cluster).get(resource, namespace, name)

    @must_be_awaited
    async def list(
        self,
        resource: str | Resource,
        *,
        clusters: str | Sequence[str] | None = None,
        namespace: str = "",
        selector: str = "",
        owner: str = "",
    ) -> list[ClusterObject]:
        """List the objects of a resource in many clusters, by cluster, namespace and name.

        Reads the indexes of the snapshot, so the number of clusters costs little. Clusters that are
        not synced or not engaged are left out; `freshness` names them. Never delete anything
        because it is missing here (rule R6). Objects too large for the bus: as for `Cluster.list`.

        Args:
            resource: like `v1/configmaps`.
            clusters: their names, a label selector of clusters like `region=eu`, or None for all.
            namespace: only this one; empty for all.
            selector: a label selector of objects.
            owner: only what this UID owns, by ownerReference or by owner mark.

        Raises:
            ClusterNotFound: one of the names is not in the fleet.
            NotSynced: none of these clusters has a complete list of the resource yet, or none
                watches it.
            SnapshotBehind: as for `Cluster.get`.
            InvalidSelector: a selector cannot be read.
        """
        chosen: list[CachedReads] = []
        for name in self._names(clusters):
            with suppress(NotEngaged):
                chosen.append(self.cluster(name).cached)
        with store_errors(SNAPSHOT_FAILURE):
            kind = as_resource(resource)
            objects, unsynced = await list_objects(chosen, kind, namespace, selector, owner)
            if chosen and len(unsynced) == len(chosen):
                raise await unsynced_everywhere(self._reader, kind)
        return objects

    @must_be_awaited
    async def freshness(
        self, resource: str | Resource, *, clusters: str | Sequence[str] | None = None
    ) -> dict[str, Freshness]:
        """Return how reliable the snapshot is for a resource, by cluster.

        Args:
            resource: like `v1/configmaps`.
            clusters: as for `list`.
        """
        names = self._names(clusters)
        with store_errors(SNAPSHOT_FAILURE):
            return await self._reader.freshness(names, as_resource(resource).key)

    def _names(self, clusters: str | Sequence[str] | None) -> Sequence[str]:
        if clusters is None or isinstance(clusters, str):
            return [info.name for info in self.clusters(clusters or "")]
        for name in clusters:
            if self.is_known and not self.has(name):
                raise ClusterNotFound(f"cluster {name!r} is not in the fleet")
        return clusters
