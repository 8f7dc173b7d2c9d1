"""The fleet as a reconciler sees it: cached reads, live reads and writes, for every cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import ClusterNotFound, FleetbusError, NotSynced
from fleetbus.kube import KubeClient, Object
from fleetbus.selectors import LabelSelector
from fleetbus.snapshot.read import Entry, ListQuery, SnapshotReader
from fleetbus.snapshot.records import ResourceState
from fleetbus.trees import read_tree
from fleetbus_proto.resources import Resource, parse_resource

_COMPLETE_ONCE: Final = (ResourceState.SYNCED, ResourceState.STALE, ResourceState.DEGRADED)


class Cluster:
    """One cluster of the fleet.

    `get` and `list` read the snapshot: quick, and as fresh as the bus. `live` is the client of
    the cluster's own API server; the writing methods here are its shortcuts.
    """

    def __init__(self, info: ClusterInfo, reader: SnapshotReader, client: KubeClient) -> None:
        self.info = info
        self.live = client
        self._reader = reader

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.info.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The cluster's labels."""
        return self.info.labels

    async def get(self, resource: str | Resource, namespace: str, name: str) -> Object | None:
        """Read one object from the snapshot; None means that it does not exist.

        An object too large for the bus is read from the API server.

        Raises:
            NotSynced: the snapshot has not seen a complete list yet, or the namespace is not
                watched, so it cannot know (P14).
        """
        found = _resource(resource)
        if body := await self._reader.body(self.name, found.key, namespace, name):
            return cast("Object", read_tree(body))
        # Absence counts if the list was complete both before and after the look: it may have been
        # completed in between, or the store may have been emptied.
        is_synced = await self._is_synced(found, namespace)
        entry = await self._reader.get(self.name, found.key, namespace, name)
        if entry is None:
            if not is_synced:
                raise _not_synced(found, self.name)
            await self._require_synced(found, namespace)
            return None
        if not entry.degraded and entry.body:
            return cast("Object", read_tree(entry.body))
        return await self.live.get(found, namespace, name)

    async def get_deleted(
        self, resource: str | Resource, namespace: str, name: str
    ) -> Object | None:
        """The last state of an object that was deleted lately; None if none is remembered."""
        entry = await self._reader.get_deleted(self.name, _resource(resource).key, namespace, name)
        return cast("Object", read_tree(entry.body)) if entry and entry.body else None

    async def list(
        self, resource: str | Resource, namespace: str = "", selector: str = ""
    ) -> list[Object]:
        """Read all objects of a resource from the snapshot.

        Those too large for the bus are read from the API server, one by one.

        Raises:
            NotSynced: the snapshot has not seen a complete list yet, or the namespace is not
                watched.
        """
        found = _resource(resource)
        await self._require_synced(found, namespace)
        page = await self._reader.list(
            ListQuery(
                clusters=(self.name,),
                resource=found.key,
                namespace=namespace or None,
                labels=LabelSelector.parse(selector) if selector else None,
                count=False,
            )
        )
        # The store may have been emptied under the list.
        await self._require_synced(found, namespace)
        objects = [await self._whole(found, entry) for entry in page.entries]
        return [obj for obj in objects if obj is not None]

    async def _whole(self, resource: Resource, entry: Entry) -> Object | None:
        if entry.degraded or not entry.body:
            return await self.live.get(resource, entry.namespace, entry.name)
        return cast("Object", read_tree(entry.body))

    async def create(self, resource: str | Resource, obj: Object) -> Object:
        """Create an object; see `KubeClient.create`."""
        return await self.live.create(resource, obj)

    async def update(self, resource: str | Resource, obj: Object) -> Object:
        """Replace an object; see `KubeClient.update`."""
        return await self.live.update(resource, obj)

    async def patch(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        patch: Object | Sequence[Object],
        *,
        subresource: str = "",
    ) -> Object:
        """Patch an object; see `KubeClient.patch`."""
        return await self.live.patch(resource, namespace, name, patch, subresource=subresource)

    async def apply(
        self,
        resource: str | Resource,
        obj: Object,
        *,
        field_manager: str = "fleetbus",
        force: bool = False,
    ) -> Object:
        """Apply an object on the server: own the fields it names, leave all others alone.

        Args:
            resource: like `v1/configmaps`.
            obj: whole or in part, with apiVersion, kind, metadata.name and metadata.namespace.
            field_manager: who owns the fields; one name for each purpose.
            force: take fields that another manager owns.

        Raises:
            Conflict: another manager owns a field; `details["causes"]` names manager and field.
        """
        return await self.live.apply(resource, obj, field_manager=field_manager, force=force)

    async def delete(
        self, resource: str | Resource, namespace: str, name: str, *, uid: str
    ) -> bool:
        """Delete an object of this uid; False if it was not there.

        The uid is required: a stranger of the same name must survive (rule D5).
        """
        return await self.live.delete(resource, namespace, name, uid=uid)

    async def _is_synced(self, resource: Resource, namespace: str) -> bool:
        found = await self._reader.freshness([self.name], resource.key, namespace=namespace)
        # Stale only flags (rule P14): what was complete once may be read, and says its age.
        return found[self.name].state in _COMPLETE_ONCE

    async def _require_synced(self, resource: Resource, namespace: str) -> None:
        if not await self._is_synced(resource, namespace):
            raise _not_synced(resource, self.name)


class Fleet:
    """All clusters; what a reconcile function is given.

    Args:
        clusters: the registry of this process.
        reader: the snapshot.
    """

    def __init__(self, clusters: Clusters, reader: SnapshotReader) -> None:
        self._clusters = clusters
        self._reader = reader

    @property
    def hub(self) -> str:
        """Name of the hub, empty when the fleet has none."""
        return self._clusters.hub

    @property
    def is_known(self) -> bool:
        """Whether every provider has told its clusters; before that, absence means nothing."""
        return self._clusters.is_known

    def has(self, name: str) -> bool:
        """Whether this process knows a cluster of this name."""
        return self._clusters.get(name) is not None

    @property
    def reader(self) -> SnapshotReader:
        """The snapshot itself, for queries that span clusters."""
        return self._reader

    def clusters(self, selector: str = "") -> list[ClusterInfo]:
        """The clusters whose labels match, by name."""
        matches = LabelSelector.parse(selector).matches
        return [info for info in self._clusters.all() if matches(info.labels)]

    def cluster(self, name: str) -> Cluster:
        """One cluster.

        Raises:
            ClusterNotFound: it is not in the fleet; the request that needs it ends quietly.
            NotEngaged: it cannot be used yet; the request is retried.
        """
        client = self._clusters.client(name)
        info = self._clusters.get(name)
        if info is None:
            raise ClusterNotFound(f"cluster {name!r} is not in the fleet")
        return Cluster(info, self._reader, client)

    async def get_all(
        self, resource: str | Resource, namespace: str, name: str
    ) -> dict[str, dict[str, Any]]:
        """The object of this name in every cluster that has it, from the snapshot.

        Clusters that are not synced are left out; ask one of them to be told.
        """
        found: dict[str, Object] = {}
        for info in self._clusters.all():
            try:
                obj = await self.cluster(info.name).get(resource, namespace, name)
            except FleetbusError:
                continue
            if obj is not None:
                found[info.name] = obj
        return found


def _resource(resource: str | Resource) -> Resource:
    return parse_resource(resource) if isinstance(resource, str) else resource


def _not_synced(resource: Resource, cluster: str) -> NotSynced:
    return NotSynced(
        f"{resource} of cluster {cluster!r} has no complete list yet, or is not watched"
    )
