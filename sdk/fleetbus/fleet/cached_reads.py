"""Reads one cluster's objects from the snapshot, with the guarantees that a run needs.

Only a complete list proves absence (rules P14, R1); reads wait for the writes of this run and the
last one (rule R5); the request's own object is never older than the change that triggered the run
(rule P10).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final, NamedTuple, cast

from fleetbus.errors import NotSynced, SnapshotBehind
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.process.pauses import Pauses
from fleetbus.run.current import ObjectRef, Run, Version, Written, current_run
from fleetbus.snapshot.reads.entries import Entry, KnownObject
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import Freshness, ResourceState
from fleetbus.store.connection import store_errors
from fleetbus_proto.resources import Resource
from fleetbus_proto.versions import version_key

SNAPSHOT_FAILURE: Final = "the snapshot cannot be read"
_COMPLETE_ONCE: Final = (ResourceState.SYNCED, ResourceState.STALE, ResourceState.DEGRADED)
WAIT: Final = timedelta(seconds=5)
"""Time after a write for which reads wait for the snapshot; then the object is read live (rule
R5)."""
_FIRST_PAUSE: Final = timedelta(milliseconds=10)
_LONGEST_PAUSE: Final = timedelta(milliseconds=200)


class ClusterObject(NamedTuple):
    """An object and the name of its cluster: an item of a list over clusters."""

    cluster: str
    object: Object


class CachedReads:
    """Reads one cluster's objects from the snapshot.

    Args:
        cluster: its name.
        reader: the snapshot.
        live: the API server, for objects that the snapshot has in part or not yet.
    """

    def __init__(self, cluster: str, reader: SnapshotReader, live: KubeClient) -> None:
        self.cluster = cluster
        self.reader = reader
        self.live = live

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """See `Cluster.get`."""
        run = current_run()
        ref = ObjectRef(self.cluster, resource.key, namespace, name)
        if run and run.trigger and ref not in run.writes and (body := run.take_offered(ref)):
            _note(run, ref, run.trigger)  # the usual first read, without the store
            return cast("Object", read_tree(body))
        with store_errors(SNAPSHOT_FAILURE):
            if run is None:
                if body := await self.reader.body(*ref):
                    return cast("Object", read_tree(body))
            elif await self._late(run, resource, [ref]):
                return await self.live.get(resource, namespace, name)
            elif run.trigger and (body := run.take_offered(ref)):
                _note(run, ref, run.trigger)
                return cast("Object", read_tree(body))
            return await self._look(run, resource, ref)

    async def get_deleted(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """See `Cluster.get_deleted`."""
        with store_errors(SNAPSHOT_FAILURE):
            entry = await self.reader.get_deleted(self.cluster, resource.key, namespace, name)
        return cast("Object", read_tree(entry.body)) if entry and entry.body else None

    async def list(
        self, resource: Resource, namespace: str, selector: str, owner: str
    ) -> list[Object]:
        """See `Cluster.list`."""
        with store_errors(SNAPSHOT_FAILURE):
            objects, unsynced = await list_objects([self], resource, namespace, selector, owner)
        if unsynced:
            raise await self._not_synced(resource)
        return [obj.object for obj in objects]

    async def entry(self, ref: ObjectRef) -> Entry | None:
        """An object with its version; None when the snapshot does not hold it now."""
        with store_errors(SNAPSHOT_FAILURE):
            state = await self._known(ref)
        return state.entry if state and state.is_live else None

    async def freshness(self, resource: Resource, namespace: str) -> Freshness:
        """See `Cluster.freshness`."""
        with store_errors(SNAPSHOT_FAILURE):
            states = await self.reader.freshness([self.cluster], resource.key, namespace=namespace)
        return states[self.cluster]

    async def _look(self, run: Run | None, resource: Resource, ref: ObjectRef) -> Object | None:
        state = await self._known(ref)
        if state is None or not state.is_live:
            # Absence counts if the list was complete both before and after the read: it may have
            # been completed in between, or the store may have been emptied.
            is_synced = await self._is_synced(resource, ref.namespace)
            state = await self._known(ref)
            if state is None or not state.is_live:
                if not is_synced:
                    raise await self._not_synced(resource)
                await self._require_synced(resource, ref.namespace)
                await self._note_absence(run, ref, state)
                return None
        return await self.whole(run, resource, state.entry)

    async def whole(self, run: Run | None, resource: Resource, entry: Entry) -> Object | None:
        """The object of an entry, recorded as read; read live if the snapshot has it in part."""
        if run is not None:
            _note(run, _ref(resource.key, entry), (entry.incarnation, entry.resource_version))
        if not _is_whole(entry):
            return await self.live.get(resource, entry.namespace, entry.name)
        return cast("Object", read_tree(entry.body))

    async def _note_absence(
        self, run: Run | None, ref: ObjectRef, buried: KnownObject | None
    ) -> None:
        if run is None:
            return
        version = buried.version if buried else None
        if version is None or run.is_behind(ref, version):
            # A list that began after the trigger proves as much as a tombstone that expired (P10).
            floor = await self.reader.floor(ref.cluster, ref.resource, ref.namespace)
            version = floor or version
        if version is not None:
            _note(run, ref, version, is_absent=True)

    # --- what was written (R5) ------------------------------------------------------------------

    async def late(self, run: Run, resource: Resource, namespace: str) -> Sequence[ObjectRef]:
        """The written objects that the snapshot does not show even after a wait (rule R5)."""
        return await self._late(run, resource, _written(run, self.cluster, resource.key, namespace))

    async def _late(
        self, run: Run, resource: Resource, refs: Sequence[ObjectRef]
    ) -> Sequence[ObjectRef]:
        """Wait until the snapshot shows the writes to these objects; returns those it still lacks.

        The wait counts from the write, so that a watch that hangs delays a run only once.
        """
        waiting = [ref for ref in refs if ref in run.writes]
        if not waiting:
            return ()
        now = time.time()
        written_at = max(min(run.writes[ref].at, now) for ref in waiting)
        until = written_at + WAIT.total_seconds()
        pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            waiting = await self._forget_shown(run, resource, waiting)
            # A clock that is set back must not make this longer either.
            if not waiting or not 0 <= until - time.time() <= WAIT.total_seconds():
                return waiting
            if not await self._is_synced(resource, waiting[0].namespace):
                return ()  # no watch will deliver it: the read raises, or finds the object
            await pauses.sleep()

    async def _forget_shown(
        self, run: Run, resource: Resource, refs: Sequence[ObjectRef]
    ) -> list[ObjectRef]:
        names = [(ref.namespace, ref.name) for ref in refs]
        states = await self.reader.known(self.cluster, resource.key, names)
        late: list[ObjectRef] = []
        for ref in refs:
            written = run.writes.get(ref)
            if written is None:
                continue  # another task of this run has seen it
            if _shows(states.get((ref.namespace, ref.name)), written):
                del run.writes[ref]
            else:
                late.append(ref)
        return late

    # --- the sync gate (P14) --------------------------------------------------------------------

    async def _known(self, ref: ObjectRef) -> KnownObject | None:
        name = (ref.namespace, ref.name)
        return (await self.reader.known(ref.cluster, ref.resource, [name])).get(name)

    async def _is_synced(self, resource: Resource, namespace: str) -> bool:
        # Staleness is only a flag (rule P14): what was complete once may be read, with its age.
        return (await self.freshness(resource, namespace)).state in _COMPLETE_ONCE

    async def _require_synced(self, resource: Resource, namespace: str) -> None:
        if not await self._is_synced(resource, namespace):
            raise await self._not_synced(resource)

    async def _not_synced(self, resource: Resource) -> NotSynced:
        with store_errors(SNAPSHOT_FAILURE):
            return await _not_synced(self.reader, resource, f"of cluster {self.cluster!r} ")


async def unsynced_everywhere(reader: SnapshotReader, resource: Resource) -> NotSynced:
    """The error of a read over clusters, none of which has a complete list of the resource."""
    return await _not_synced(reader, resource, "")


async def _not_synced(reader: SnapshotReader, resource: Resource, where: str) -> NotSynced:
    suggestion = await reader.watched.suggest(resource)
    if suggestion is None:
        return NotSynced(f"{resource} {where}has no complete list yet, or is not watched")
    error = NotSynced(f"{resource} is not watched in any cluster of the fleet yet; {suggestion}")
    error.unwatched, error.did_you_mean = str(resource), suggestion.did_you_mean
    return error


async def list_objects(
    clusters: Sequence[CachedReads],
    resource: Resource,
    namespace: str,
    selector: str,
    owner: str,
) -> tuple[list[ClusterObject], Sequence[str]]:
    """The objects of a resource in all these clusters, and the clusters that cannot tell (P14).

    The number of calls to the store does not depend on the number of clusters.
    """
    if not clusters:
        return [], ()
    reader, run, by_name = (
        clusters[0].reader,
        current_run(),
        {cluster.cluster: cluster for cluster in clusters},
    )
    labels = LabelSelector.parse(selector) if selector else None
    late = await _late(clusters, run, resource, namespace)
    before = await _unsynced(reader, by_name, resource, namespace)
    query = ListQuery(
        clusters=[name for name in by_name if name not in before],
        resource=resource.key,
        namespace=namespace or None,
        labels=labels,
        owner=owner or None,
        count=False,
    )
    entries = await _entries(reader, query)
    # The store may have been emptied during the list.
    unsynced = before | await _unsynced(reader, by_name, resource, namespace)
    objects: list[ClusterObject] = []
    for ref, entry in entries.items():
        if entry.cluster not in unsynced and ref not in late:
            obj = await by_name[entry.cluster].whole(run, resource, entry)
            if obj and (_is_whole(entry) or _is_wanted(obj, labels, owner)):
                objects.append(ClusterObject(entry.cluster, obj))
    for ref in late:
        obj = await by_name[ref.cluster].live.get(resource, ref.namespace, ref.name)
        if obj and ref.cluster not in unsynced and _is_wanted(obj, labels, owner):
            objects.append(ClusterObject(ref.cluster, obj))
    is_mixed = late or not all(map(_is_whole, entries.values()))
    return sorted(objects, key=_place) if is_mixed else objects, sorted(unsynced)


async def _late(
    clusters: Sequence[CachedReads], run: Run | None, resource: Resource, namespace: str
) -> list[ObjectRef]:
    """The objects that the run has written and the snapshot does not show in time."""
    if run is None:
        return []
    return [ref for cluster in clusters for ref in await cluster.late(run, resource, namespace)]


async def _entries(reader: SnapshotReader, query: ListQuery) -> dict[ObjectRef, Entry]:
    """The objects that a query finds, and those that it may mean: some have unknown labels."""
    entries = list((await reader.list(query)).entries)
    if query.labels is not None or query.owner is not None:
        more = await reader.unlabelled(query.clusters, query.resource)
        entries += [entry for entry in more if query.namespace in {None, entry.namespace}]
    return {_ref(query.resource, entry): entry for entry in entries}


async def _unsynced(
    reader: SnapshotReader, names: Iterable[str], resource: Resource, namespace: str
) -> set[str]:
    states = await reader.freshness(names, resource.key, namespace=namespace)
    return {name for name, freshness in states.items() if freshness.state not in _COMPLETE_ONCE}


def _note(run: Run, ref: ObjectRef, version: Version, *, is_absent: bool = False) -> None:
    if run.is_behind(ref, version):
        raise SnapshotBehind(
            f"{ref.resource} {ref.namespace}/{ref.name} of cluster {ref.cluster!r} is at "
            f"{version} in the snapshot, older than {run.trigger} that caused this run"
        )
    run.note_read(ref, version, is_absent=is_absent)


def _shows(state: KnownObject | None, written: Written) -> bool:
    """Whether the snapshot shows a write."""
    if state is None:
        return written.is_deleted
    entry = state.entry
    if written.resource_version:
        return version_key(entry.resource_version) >= version_key(written.resource_version)
    # A deletion: the object is gone, replaced by another one, or being deleted.
    if not state.is_live or entry.uid != written.uid or not entry.body:
        return True
    return "deletionTimestamp" in cast("Object", read_tree(entry.body))["metadata"]


def _written(run: Run, cluster: str, resource: str, namespace: str) -> Sequence[ObjectRef]:
    return [
        ref
        for ref in run.writes
        if ref.cluster == cluster and ref.resource == resource and namespace in {"", ref.namespace}
    ]


def _place(obj: ClusterObject) -> tuple[str, str, str]:
    metadata = obj.object["metadata"]
    return (obj.cluster, str(metadata.get("namespace") or ""), str(metadata["name"]))


def _is_whole(entry: Entry) -> bool:
    return bool(entry.body) and not entry.degraded


def _is_wanted(obj: Object, labels: LabelSelector | None, owner: str) -> bool:
    label_values = cast("dict[str, str]", obj["metadata"].get("labels") or {})
    if labels is not None and not labels.matches(label_values):
        return False
    references = cast("list[Object]", obj["metadata"].get("ownerReferences") or [])
    owners = {reference.get("uid") for reference in references} | {
        label_values.get(OWNER_UID_LABEL)
    }
    return not owner or owner in owners


def _ref(resource: str, entry: Entry) -> ObjectRef:
    return ObjectRef(entry.cluster, resource, entry.namespace, entry.name)
