"""Gathers a capture: the snapshot of some clusters, and their events from the stream.

Everything is read in pages and written at once, so that memory does not grow with the fleet.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from fleetbus.bus.jetstream import call_jetstream
from fleetbus.kube.list_watch.listing import DECODE_ERRORS
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot.guard import read_terms
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.records import ClusterRecord, Freshness, ResourceRecord
from fleetbus_cli.capture.format import (
    CapturedCluster,
    CapturedObject,
    CapturedResource,
    Gap,
    Header,
    Window,
)
from fleetbus_cli.events.history import read_events
from fleetbus_proto.events import UNREADABLE, Event
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, events_filter

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus
    from fleetbus.snapshot.reads.entries import Entry
    from fleetbus.snapshot.reads.reader import SnapshotReader
    from fleetbus_cli.capture.file import CaptureWriter
    from fleetbus_cli.capture.redact import Redactor

_PAGE: Final = 500
_PAGE_BYTES: Final = 8 * 1024 * 1024
_FIRST: Final = ("apiextensions.k8s.io/customresourcedefinitions", "core/namespaces")
"""The resources that others need, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects what is captured.

    Attributes:
        since: how far the events reach back.
        clusters: names; empty for all.
        resources: resource keys; empty for all that are watched. What these need, definitions and
            namespaces, is captured too.
    """

    since: timedelta
    clusters: Collection[str] = ()
    resources: Collection[str] = ()

    def chooses(self, key: str) -> bool:
        """Whether a resource is captured."""
        return not self.resources or key in self.resources or key in _FIRST


@dataclass(frozen=True, slots=True, kw_only=True)
class Gatherer:
    """Captures a part of a fleet.

    Attributes:
        reader: of the snapshot.
        bus: has the events; None to capture none.
        writer: of the file.
        redactor: hides values.
        report: called with the number of objects and events so far.
    """

    reader: SnapshotReader
    bus: Bus | None
    writer: CaptureWriter
    redactor: Redactor
    report: Callable[[int, int], None]

    async def gather(self, selection: Selection) -> Header:
        """Write header, objects and events; returns the header.

        Raises:
            StoreError: the store cannot be read.
            BusError: the stream cannot be read to its end.
        """
        now = datetime.now(UTC)
        members = [
            record
            for record in await self.reader.clusters()
            if not selection.clusters or record.name in selection.clusters
        ]
        clusters = [await self._cluster(record, selection, now) for record in members]
        header = Header(
            captured_at=rfc3339(now),
            since_seconds=selection.since.total_seconds(),
            only=sorted(selection.resources),
            redacted=self.redactor.describe(),
            window=await self._window(selection, clusters, now),
            clusters=clusters,
        )
        self.writer.header(header)
        for cluster in clusters:
            for resource in cluster.resources:
                await self._objects(cluster.name, resource)
        async for event in self._events(selection, now):
            self.writer.event(self._hidden(event))
            self._progress()
        return header

    # --- the header -------------------------------------------------------------------------------

    async def _cluster(
        self, record: ClusterRecord, selection: Selection, now: datetime
    ) -> CapturedCluster:
        resources = [
            _resource(resource, record, now)
            for resource in await self.reader.resources(record.name)
            if selection.chooses(resource.key)
        ]
        return CapturedCluster(
            name=record.name,
            labels=record.labels,
            hub=record.hub,
            server_version=record.server_version,
            uid=record.uid,
            silent=record.why_silent(now),
            resources=sorted(resources, key=lambda entry: _order(entry.resource)),
        )

    async def _window(
        self, selection: Selection, clusters: Iterable[CapturedCluster], now: datetime
    ) -> Window:
        start = now - selection.since
        gaps: list[Gap] = []
        if self.bus is None or not selection.since:
            return Window(start=rfc3339(now), end=rfc3339(now), gaps=gaps)
        info = await call_jetstream(self.bus, f"STREAM.INFO.{STREAM}")
        first = _time(info["state"].get("first_ts")) if info["state"].get("messages") else now
        if first > start:
            why = "the stream begins later"
            gaps.append(Gap(cluster=None, start=rfc3339(start), end=rfc3339(first), reason=why))
            start = first
        gaps += [
            Gap(cluster=cluster.name, start=rfc3339(start), end=rfc3339(now), reason=cluster.silent)
            for cluster in clusters
            if cluster.silent
        ]
        return Window(start=rfc3339(start), end=rfc3339(now), gaps=gaps)

    # --- the content ------------------------------------------------------------------------------

    async def _objects(self, cluster: str, captured_resource: CapturedResource) -> None:
        resource = captured_resource.resource
        query = ListQuery(
            clusters=[cluster],
            resource=resource.key,
            limit=_PAGE,
            max_bytes=_PAGE_BYTES,
            count=False,
        )
        async for page in self.reader.pages(query):
            for entry in page.entries:
                self.writer.object(self._captured(resource, entry))
            self._progress()

    def _captured(self, resource: Resource, entry: Entry) -> CapturedObject:
        body, degraded = self._redacted(resource, entry.body or None, entry.degraded)
        return CapturedObject(
            cluster=entry.cluster,
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            resource_version=entry.resource_version,
            incarnation=entry.incarnation,
            degraded=degraded,
            object=msgspec.Raw(b"null" if body is None else body),
        )

    def _hidden(self, event: Event) -> Event:
        resource = Resource(event.group, event.version, event.resource)
        body, degraded = self._redacted(resource, event.object, event.degraded)
        return msgspec.structs.replace(event, object=body, degraded=degraded)

    def _redacted(
        self, resource: Resource, body: bytes | None, degraded: str
    ) -> tuple[bytes | None, str]:
        if body is None:
            return None, degraded
        if read_terms(body) is None:  # no object at all: it would not even be a line of the file
            return None, UNREADABLE
        try:
            return self.redactor.apply(resource, body), degraded
        except DECODE_ERRORS:  # nobody can tell what is in it, so it is not given to others
            return None, UNREADABLE

    async def _events(self, selection: Selection, now: datetime) -> AsyncGenerator[Event]:
        if self.bus is None or not selection.since:
            return
        chosen = list(selection.clusters)
        subject = events_filter(cluster=chosen[0]) if len(chosen) == 1 else EVENTS_ALL
        async for event, metadata in read_events(
            self.bus, subject=subject, start=now - selection.since
        ):
            if metadata.timestamp > now:
                return  # what came since is in no window
            if (not chosen or event.cluster in chosen) and selection.chooses(event.resource_key):
                yield event

    def _progress(self) -> None:
        self.report(self.writer.objects, self.writer.events)


def _resource(resource: ResourceRecord, record: ClusterRecord, now: datetime) -> CapturedResource:
    freshness = Freshness.of(resource, record, now)
    return CapturedResource(
        group=resource.group,
        version=resource.version,
        plural=resource.plural,
        kind=resource.kind,
        namespaced=resource.namespaced,
        incomplete=freshness.reason,
    )


def _order(resource: Resource) -> tuple[int, str]:
    key = resource.key
    return (_FIRST.index(key) if key in _FIRST else len(_FIRST), key)


def _time(text: object) -> datetime:
    return datetime.fromisoformat(str(text))


def missing(names: Sequence[str], available: Collection[str]) -> str:
    """The first of some names that is not known; empty if all are."""
    return next((name for name in names if name not in available), "")
