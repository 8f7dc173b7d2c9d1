"""Answers what was deleted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from fleetbus.archive import EventFilter
from fleetbus.bus.connection import Bus, NoStream
from fleetbus.bus.stream_reads import read_messages
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot import Entry, SnapshotReader
from fleetbus_proto.distribution import DistributionEvent, decode_distribution_event
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, DistributionVerb
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.fields.bodies import UnreadableBody, matches_entry, why_degraded
from fleetbus_query_api.history.latest import Latest
from fleetbus_query_api.history.parameters import DeletedParameters
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
)
from fleetbus_query_api.operations.held_deletions import MULTI_CLUSTER_RESOURCES
from fleetbus_query_api.past.deletions import is_deletion, read_deletions
from fleetbus_query_api.past.stored_events import StoredEvent
from fleetbus_query_api.past.window import Asked, Windows
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.render import (
    body_of,
    render_freshness,
    render_item,
    render_list,
    render_one,
)

_TOGETHER: Final = 100
_TOGETHER_BYTES: Final = 1024**2
_DELETIONS: Final = f"fleetbus.distribution.*.*.*.{DistributionVerb.DELETED}"


_Place: TypeAlias = tuple[str, str, str, str, str]
"""Cluster, group, kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class _Deletion:
    """One deletion, with the object as it was last."""

    entry: Entry
    at: datetime
    group: str
    kind: str
    cluster_uid: str
    """UID of the namespace kube-system of the cluster that it was deleted from."""
    is_found_late: bool
    """Found by a list: it may have happened earlier."""

    @property
    def places(self) -> tuple[_Place, _Place]:
        """The object in events of the distributor; those of earlier releases do not say a group."""
        cluster, namespace, name = self.entry[:3]
        place = (self.kind, namespace, name)
        return (cluster, self.group, *place), (cluster, "", *place)


class DeletedObjects:
    """Answers requests for deletions, as JSON.

    Args:
        reader: the snapshot.
        listing: finds what a user may list.
        windows: check times.
        access: decides who may know what deleted an object.
        slices: run the matching.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        listing: ObjectListing,
        windows: Windows,
        access: Access,
        slices: TimeSlices,
    ) -> None:
        self._reader = reader
        self._listing = listing
        self._windows = windows
        self._access = access
        self._slices = slices

    async def list(
        self, user: User, resource: str, parameters: DeletedParameters
    ) -> Sequence[bytes]:
        """List the last deletions, the latest first.

        Raises:
            BadRequestProblem, InvalidName, InvalidSelector, NotFoundProblem: as of a list.
            InvalidTime: the time is malformed.
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        scope = await self._listing.select(user, resource, parameters)
        clusters, key = scope.query.clusters, scope.query.resource
        past = await self._windows.ask_since(parameters.since)
        last_deletions = Latest[_Deletion](
            parameters.limit, size_of=lambda deletion: len(deletion.entry.body)
        )
        undecided: dict[str, int] = {}

        def take(stored: StoredEvent) -> None:
            deletion = _deletion(stored)
            cluster = deletion.entry.cluster
            try:
                if matches_entry(deletion.entry, scope.query.labels, scope.fields):
                    last_deletions.add(deletion)
            except UnreadableBody:
                undecided[cluster] = undecided.get(cluster, 0) + 1

        async for some in _together(_read(past, clusters, key, parameters)):
            await self._slices.run(take, some)
        latest = sorted(last_deletions.kept, key=lambda deletion: deletion.at, reverse=True)
        causes = await self._causes(user, past.bus, past.at, latest) if latest else {}
        present = await self._present(key, latest)
        return render_list(
            _joined([_render(deletion, causes, present) for deletion in latest]),
            {
                "since": rfc3339(past.since),
                "remaining": last_deletions.total - len(latest),
                "undecided": undecided,
                "window": await self._windows.describe(past, clusters, key),
                "resource": describe_resource(scope.readable.resource),
                **render_freshness(scope.freshness),
            },
        )

    async def _present(
        self, resource: str, deletions: Sequence[_Deletion]
    ) -> set[tuple[str, str, str]]:
        """Those places where an object exists again."""
        places: dict[str, list[tuple[str, str]]] = {}
        for deletion in deletions:
            places.setdefault(deletion.entry.cluster, []).append(
                (deletion.entry.namespace, deletion.entry.name)
            )
        present: set[tuple[str, str, str]] = set()
        for cluster, names in places.items():
            versions = await self._reader.versions(cluster, resource, list(dict.fromkeys(names)))
            present |= {(cluster, *name) for name, version in versions.items() if version.is_live}
        return present

    async def _causes(
        self, user: User, bus: Bus, since: datetime, deletions: Sequence[_Deletion]
    ) -> dict[_Place, dict[str, str]]:
        """Find which MultiClusterResource deleted an object, by its place, if one says so."""
        # The cause names a MultiClusterResource; hide it from users who may not list those.
        if not await self._access.is_allowed_on_hub(user, MULTI_CLUSTER_RESOURCES):
            return {}
        places = {place for deletion in deletions for place in deletion.places}
        causes: dict[_Place, dict[str, str]] = {}
        try:
            async for page in read_messages(bus, DISTRIBUTION_STREAM, _DELETIONS, start=since):
                for message in page:
                    event = decode_distribution_event(message.body)
                    if event is not None:
                        causes |= dict.fromkeys(places & _places(event), _render_cause(event))
        except NoStream:
            pass  # no distributor has run here
        return causes


def _places(event: DistributionEvent) -> set[_Place]:
    """The places of its objects: an event names a namespace also of an object that is in none."""
    places: set[_Place] = set()
    for affected in event.objects:
        kind, _, place = affected.object.partition(" ")
        namespace, _, name = place.rpartition("/")
        for each in (namespace, ""):
            places.add((event.cluster, affected.group, kind, each, name))
    return places


def _render_cause(event: DistributionEvent) -> dict[str, str]:
    return {"kind": "MultiClusterResource", "namespace": event.namespace, "name": event.name}


async def _read(
    past: Asked, clusters: Sequence[str], resource: str, parameters: DeletedParameters
) -> AsyncGenerator[StoredEvent]:
    """Yield deletions, from the archive and then from the stream."""
    if past.older is not None:
        group, _, plural = resource.rpartition("/")
        where = EventFilter(
            clusters[0] if len(clusters) == 1 else None,
            group,
            plural,
            parameters.namespace or None,
            parameters.name or None,
        )
        names = frozenset(clusters)
        async for stored in past.older.read(where):
            if is_deletion(stored.event) and stored.event.cluster in names:
                yield stored
    async for stored in read_deletions(
        past.bus,
        places=[(cluster, resource) for cluster in clusters],
        since=past.at,
        namespace=parameters.namespace,
        name=parameters.name,
    ):
        yield stored


async def _together(
    deletions: AsyncGenerator[StoredEvent],
) -> AsyncGenerator[list[StoredEvent]]:
    """Yield some at a time, a few megabytes at most: one by one each would wait for its turn."""
    some: list[StoredEvent] = []
    size = 0
    async for stored in deletions:
        some.append(stored)
        size += len(stored.event.object or b"")
        if len(some) >= _TOGETHER or size > _TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _deletion(stored: StoredEvent) -> _Deletion:
    event = stored.event
    body = event.object or b""
    entry = Entry(
        event.cluster,
        event.namespace,
        event.name,
        event.uid,
        event.resource_version,
        body,
        0,
        why_degraded(body, event.degraded),
        event.incarnation.number,
    )
    return _Deletion(
        entry,
        stored.stored_at,
        event.group,
        event.kind,
        event.incarnation.uid,
        event.final_state_unknown,
    )


def _render(
    deletion: _Deletion,
    causes: Mapping[_Place, dict[str, str]],
    present: set[tuple[str, str, str]],
) -> bytes:
    entry = deletion.entry
    more: dict[str, Any] = {
        "deletedAt": rfc3339(deletion.at),
        "clusterUid": deletion.cluster_uid,
        "foundByList": deletion.is_found_late,
        "deletedBy": next(filter(None, map(causes.get, deletion.places)), None),
        "existsAgain": (entry.cluster, entry.namespace, entry.name) in present,
    }
    if body_of(entry):
        more |= {"namespace": entry.namespace, "name": entry.name, "uid": entry.uid}
    return render_one(render_item(entry), more)


def _joined(items: Sequence[bytes]) -> list[bytes]:
    return [piece for item in items for piece in (b",", item)][1:]
