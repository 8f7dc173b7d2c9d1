"""One cluster as a reconciler sees it: cached reads, live reads, and writes that are remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import Invalid
from fleetbus.fleet.cached_reads import CachedReads
from fleetbus.fleet.tracked_writes import TrackedWrites, with_preconditions
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.events import EventRecorder, EventType
from fleetbus.run.awaited import must_be_awaited
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import Freshness
from fleetbus_proto.resources import Resource, parse_resource


class Cluster:
    """One cluster of the fleet.

    `get` and `list` read the snapshot: they are fast, and as fresh as the bus. Writes go to the
    cluster's own API server and are recorded, so that the next reads show them (rule R5). `live` is
    the client of that server, for everything else.
    """

    def __init__(
        self,
        info: ClusterInfo,
        reader: SnapshotReader,
        client: KubeClient,
        events: EventRecorder | None = None,
    ) -> None:
        self.info = info
        self._events = events or EventRecorder()
        self.live = client
        self._reader = reader
        self.cached = CachedReads(info.name, reader, client)
        self._writes = TrackedWrites(info.name, client, self.cached)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.info.name

    @property
    def labels(self) -> Mapping[str, str]:
        """The cluster's labels."""
        return self.info.labels

    @must_be_awaited
    async def get(self, resource: str | Resource, namespace: str, name: str) -> Object | None:
        """Read one object from the snapshot; None means that it does not exist.

        An object too large for the bus is read from the API server, and so is an object that this
        run or the last one has written, if the snapshot does not show it within 5 s (rule R5).

        Raises:
            NotSynced: the snapshot has not seen a complete list yet, or the namespace is not
                watched, so it cannot know (P14).
            SnapshotBehind: the request's own object is older than the change that caused this run
                (P10); the request comes back by itself.
            StoreError: the snapshot's store is away; so for every read from the snapshot.
        """
        return await self.cached.get(as_resource(resource), namespace, name)

    @must_be_awaited
    async def get_deleted(
        self, resource: str | Resource, namespace: str, name: str
    ) -> Object | None:
        """Return the last state of a recently deleted object; None if it is unknown."""
        return await self.cached.get_deleted(as_resource(resource), namespace, name)

    @must_be_awaited
    async def list(
        self,
        resource: str | Resource,
        namespace: str = "",
        selector: str = "",
        *,
        owner: str = "",
    ) -> list[Object]:
        """Read all objects of a resource from the snapshot, by namespace and name.

        Objects too large for the bus are read from the API server, one by one, also with a selector
        or an owner, because the snapshot does not know their labels. Like `get`, it waits for the
        writes of this run and the last one.

        Args:
            resource: like `v1/configmaps`.
            namespace: only this one; empty for all.
            selector: a label selector.
            owner: only what this UID owns, by ownerReference or by owner mark.

        Raises:
            NotSynced: the snapshot has not seen a complete list yet, or the namespace is not
                watched.
            SnapshotBehind: as for `get`.
            InvalidSelector: the selector cannot be read.
        """
        return await self.cached.list(as_resource(resource), namespace, selector, owner)

    @must_be_awaited
    async def freshness(self, resource: str | Resource, namespace: str = "") -> Freshness:
        """Return how reliable the snapshot is for a resource: its state, its age, and why.

        Args:
            resource: like `v1/configmaps`.
            namespace: the only one that is asked for; empty for all that are watched.
        """
        return await self.cached.freshness(as_resource(resource), namespace)

    @must_be_awaited
    async def create(self, resource: str | Resource, obj: Object) -> Object:
        """Create an object; see `KubeClient.create`.

        Raises:
            AlreadyExists: the name is taken.
            IncompleteObject: a mark of the watcher stands in place of a value.
        """
        return await self._writes.create(as_resource(resource), obj)

    @must_be_awaited
    async def update(self, resource: str | Resource, obj: Object) -> Object:
        """Replace an object that is still at its metadata.resourceVersion.

        An object that was read live is replaced. For an object from `get` or `list`, which lacks
        fields that the watcher leaves out, only the differences are sent, as a merge patch, so that
        the other fields stay. A no-op update is not sent (rule R10).

        Raises:
            Invalid: it has no metadata.resourceVersion.
            Conflict: it was changed since it was read.
            IncompleteObject: a mark of the watcher stands in place of a value, or a list is to be
                replaced in whose items the watcher has left something out.
        """
        return await self._writes.update(as_resource(resource), obj)

    @must_be_awaited
    async def patch(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        patch: Object | Sequence[Object],
        *,
        subresource: str = "",
        uid: str = "",
        resource_version: str = "",
    ) -> Object:
        """Patch an object: a dict is a merge patch, a sequence is a JSON patch.

        A patch whose result is still in the snapshot is not sent again (rule R10).

        Args:
            resource: like `v1/configmaps`.
            namespace: empty for a cluster-scoped object.
            name: of the object.
            patch: the changes.
            subresource: like `status`.
            uid: the object must have this one; another of the same name stays as it is.
            resource_version: the object must still be at this version.

        Raises:
            NotFound: there is no such object.
            Conflict: it has another uid or resourceVersion.
            IncompleteObject: a mark of the watcher stands in place of a value.
        """
        return await self._writes.patch(
            as_resource(resource),
            namespace,
            name,
            with_preconditions(patch, uid, resource_version),
            subresource=subresource,
        )

    @must_be_awaited
    async def patch_status(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        status: Object,
        *,
        uid: str = "",
        resource_version: str = "",
    ) -> Object:
        """Merge fields into the status of an object, through its subresource `status`.

        A patch whose result is still in the snapshot is not sent again (rule R10).

        Args:
            resource: like `example.com/v1/widgets`.
            namespace: empty for a cluster-scoped object.
            name: of the object.
            status: the fields below `status`; null removes one, and a list is replaced whole.
            uid: as for `patch`.
            resource_version: as for `patch`.

        Raises:
            NotFound: there is no such object, or the resource has no subresource `status`.
            Conflict: it has another uid or resourceVersion.
            Invalid: `status` is wrapped in another `status`; or the server refuses it.
            IncompleteObject: a mark of the watcher stands in place of a value.
        """
        if status.keys() == {"status"} and isinstance(status["status"], dict):
            # A schema would drop the inner one without a word.
            message = (
                'patch_status takes the fields below status: {"phase": …}, not {"status": {…}}'
            )
            raise Invalid(0, "Invalid", message)
        patch = with_preconditions({"status": status}, uid, resource_version)
        return await self._writes.patch(
            as_resource(resource), namespace, name, patch, subresource="status"
        )

    @must_be_awaited
    async def add_finalizer(self, resource: str | Resource, obj: Object, finalizer: str) -> Object:
        """Add a finalizer to an object and return the object; other finalizers stay.

        Nothing is sent if the object has it. Call this before you create anything that needs
        cleanup: from then on a deleted object stays until `remove_finalizer`.

        Args:
            resource: like `v1/configmaps`.
            obj: as it was read.
            finalizer: a name of your own, like `example.com/cleanup`.

        Raises:
            Conflict: the object was changed at the same moment, deleted, or replaced by another of
                its name; the request is retried.
            Invalid: the object is being deleted, or the server refuses the name.
        """
        return await self._writes.add_finalizer(as_resource(resource), obj, finalizer)

    @must_be_awaited
    async def remove_finalizer(self, resource: str | Resource, obj: Object, finalizer: str) -> None:
        """Remove a finalizer from an object; other finalizers stay.

        Nothing is sent if the object lacks it, or is gone.

        Args:
            resource: like `v1/configmaps`.
            obj: as it was read.
            finalizer: the name that `add_finalizer` was given.

        Raises:
            Conflict: the object was changed at the same moment; the request is retried.
        """
        await self._writes.remove_finalizer(as_resource(resource), obj, finalizer)

    @must_be_awaited
    async def apply(
        self,
        resource: str | Resource,
        obj: Object,
        *,
        field_manager: str = "fleetbus",
        force: bool = False,
    ) -> Object:
        """Apply an object server-side: own the fields that it names, leave all others alone.

        An apply whose result is still in the snapshot is not sent again (rule R10).

        Args:
            resource: like `v1/configmaps`.
            obj: whole or in part, with apiVersion, kind, metadata.name and metadata.namespace;
                a metadata.uid or metadata.resourceVersion is a precondition.
            field_manager: who owns the fields; one name for each purpose.
            force: take fields that another manager owns.

        Raises:
            Conflict: another manager owns a field; `details["causes"]` names manager and field.
            IncompleteObject: a mark of the watcher stands in place of a value.
        """
        return await self._writes.apply(
            as_resource(resource), obj, field_manager=field_manager, force=force
        )

    @must_be_awaited
    async def delete(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
    ) -> bool:
        """Delete the object with this uid; return False if it did not exist.

        The uid is required: another object of the same name must survive (rule D5). Take it from a
        live read: the snapshot alone is never a reason to delete (rule R6).

        Raises:
            Conflict: the object has another uid or resourceVersion.
        """
        return await self._writes.delete(
            as_resource(resource), namespace, name, uid=uid, resource_version=resource_version
        )

    @must_be_awaited
    async def event(
        self,
        obj: Object,
        *,
        reason: str,
        message: str,
        type: EventType = "Normal",  # noqa: A002 -- the field's word
    ) -> None:
        """Write a Kubernetes Event about an object of this cluster, in the object's namespace.

        Repeating a message raises the Event's count. An object may get a burst of 25 Events and one
        more every five minutes; further Events are dropped. This never fails a reconcile: an Event
        that cannot be written is logged and counted.

        Args:
            obj: whole, as it was read; of a cluster-scoped object the Event is in `default`.
            reason: a short word in camel case, like `ConfigMapFound`.
            message: for people.
            type: `Normal` or `Warning`.
        """
        await self._events.record(
            self.name, self.live, obj, reason=reason, message=message, type_=type
        )


def as_resource(resource: str | Resource) -> Resource:
    """A resource, however it is written."""
    return parse_resource(resource) if isinstance(resource, str) else resource
