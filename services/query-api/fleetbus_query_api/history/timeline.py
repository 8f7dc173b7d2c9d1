"""Answers what happened to one object: change, bus, queue, reconcile, apply."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from fleetbus.archive import EventFilter
from fleetbus.bus.connection import Bus, NoStream
from fleetbus.bus.stream_reads import read_last, read_messages
from fleetbus.errors import MalformedOwner
from fleetbus.history.differences import NONE, Differences, compare_bodies
from fleetbus.history.states import PastStates, StoredEvent, read_event, subject_of
from fleetbus.ownership import Owner, owner_of
from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot import SnapshotReader
from fleetbus_proto.distribution import DistributionEvent, decode_distribution_event
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, STREAM, Verb, distribution_filter
from fleetbus_query_api.access.user import User
from fleetbus_query_api.answers.object_listing import ObjectListing, describe_resource, members_of
from fleetbus_query_api.answers.problem import NotFoundProblem
from fleetbus_query_api.answers.readable import Selection
from fleetbus_query_api.answers.render import render_freshness
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.history.parameters import TimelineParameters
from fleetbus_query_api.history.runs import ControllerRun, RunReads
from fleetbus_query_api.history.window import Asked, Windows
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.relations.owners import ObjectPath

_MOST_DISTRIBUTIONS: Final = 100
_OWNER_KIND: Final = "MultiClusterResource"


@dataclass(frozen=True, slots=True)
class _Changes:
    """The last changes of an object, and whether there are more before them."""

    events: Sequence[StoredEvent]
    has_more: bool


class Timelines:
    """Answers requests for timelines, as JSON.

    Args:
        reader: the snapshot.
        listing: finds what a user may get.
        windows: check times.
        runs: the last runs of controllers.
        slices: run the comparisons.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        listing: ObjectListing,
        windows: Windows,
        runs: RunReads,
        slices: TimeSlices,
    ) -> None:
        self._reader = reader
        self._listing = listing
        self._windows = windows
        self._runs = runs
        self._slices = slices

    async def show(self, user: User, path: ObjectPath, asked: TimelineParameters) -> bytes:
        """Show what happened to an object, the latest last.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such resource or cluster, or the user may not get the object; or
                nothing at all is known of such an object.
            HistoryError: the time is malformed.
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        wanted = Selection(
            verb="get",
            resource=path.resource,
            clusters=[path.cluster],
            namespace=path.namespace,
            name=path.name,
        )
        readable = await self._listing.find(user, wanted)
        freshness = await self._listing.freshness(readable, path.namespace)
        if not members_of(readable):
            raise NotFoundProblem(
                f"no such object: {path.cluster[:200]} is not in the fleet, does not watch it, or"
                " you may not read it there",
                **render_freshness(freshness),
            )
        ref = ObjectRef(path.cluster, readable.known.key, path.namespace, path.name)
        past = await self._windows.ask_since(asked.since)
        changes = await _last_changes(past, ref, asked.limit)
        body = await self._reader.body(*ref)
        if not changes.events and body is None:
            raise NotFoundProblem(
                "no such object, now or since then", **render_freshness(freshness)
            )
        entries = await self._describe(past.bus, ref, changes)
        owner = _owner(body or _last_body(changes.events))
        entries += await self._describe_runs(ref, owner)
        entries += await _describe_distribution(past, ref.cluster, owner)
        entries.sort(key=lambda entry: entry["time"])
        return msgspec.json.encode(
            {
                "object": {
                    "cluster": ref.cluster,
                    "resource": ref.resource,
                    "namespace": ref.namespace,
                    "name": ref.name,
                },
                "since": rfc3339(past.since),
                "entries": entries,
                "hasMore": changes.has_more,
                "window": await self._windows.describe(past, [ref.cluster], ref.resource),
                "resource": describe_resource(readable.known),
                **render_freshness(freshness),
            }
        )

    async def _describe(self, bus: Bus, ref: ObjectRef, changes: _Changes) -> list[dict[str, Any]]:
        """Describe changes, each with its differences to the one before."""
        events = changes.events
        before = b""
        if events and events[0].event.verb in (Verb.MODIFIED, Verb.LISTED):
            states = PastStates(bus=bus, reader=self._reader)
            before = (await states.at([ref], events[0].stored_at))[ref].body
        found: list[dict[str, Any]] = []

        def add(stored: StoredEvent) -> None:
            nonlocal before
            body = stored.event.object or b""
            is_new = stored.event.verb is Verb.ADDED or not before or not body
            found.append(_change(stored, NONE if is_new else compare_bodies(before, body)))
            before = b"" if stored.event.verb is Verb.DELETED else body or before

        await self._slices.run(add, events)
        return found

    async def _describe_runs(self, ref: ObjectRef, owner: Owner | None) -> list[dict[str, Any]]:
        """The last run of each controller for the object, and for its owner."""
        places = [(ref.cluster, ref.namespace, ref.name)]
        if owner is not None:
            # A controller of the owner works for the owner's key; the distributor for each cluster.
            places += [
                (cluster, owner.namespace, owner.name)
                for cluster in dict.fromkeys((owner.cluster_name, ref.cluster))
            ]
        return [_run(one) for one in await self._runs.last_runs(list(dict.fromkeys(places)))]


async def _last_changes(past: Asked, ref: ObjectRef, limit: int) -> _Changes:
    """Read the last changes since a time, from the stream and before it from the archive."""
    messages, has_more = await read_last(
        past.bus,
        STREAM,
        subject_of(ref),
        start=past.at,
        end=past.window.last_sequence,
        most=limit,
    )
    events = list(filter(None, map(read_event, messages)))
    if past.older is None or has_more or len(events) >= limit:
        return _Changes(events, has_more)
    older, count = deque[StoredEvent](maxlen=limit - len(events)), 0
    async for stored in past.older.read(_filter_of(ref)):
        older.append(stored)
        count += 1
    return _Changes([*older, *events], count > len(older))


def _filter_of(ref: ObjectRef) -> EventFilter:
    group, _, plural = ref.resource.rpartition("/")
    return EventFilter(ref.cluster, group, plural, ref.namespace, ref.name)


async def _describe_distribution(
    past: Asked, cluster: str, owner: Owner | None
) -> list[dict[str, Any]]:
    """The reports of the distributor about the owner in this cluster, if it is its object."""
    if owner is None or owner.kind != _OWNER_KIND:
        return []
    subject = distribution_filter(namespace=owner.namespace, name=owner.name, cluster=cluster)
    found: list[DistributionEvent] = []
    try:
        async for page in read_messages(past.bus, DISTRIBUTION_STREAM, subject, start=past.at):
            events = [decode_distribution_event(message.body) for message in page]
            found += [event for event in events if event is not None]
            found = found[-_MOST_DISTRIBUTIONS:]
    except NoStream:
        return []  # no distributor has run here
    return [_distribution(event) for event in found]


def _change(stored: StoredEvent, differences: Differences) -> dict[str, Any]:
    event = stored.event
    observed = datetime.fromisoformat(event.observed_at)
    return {
        "time": rfc3339(stored.stored_at),
        "stage": "change",
        "verb": event.verb.value,
        "resourceVersion": event.resource_version,
        "uid": event.uid,
        "sequence": stored.sequence,
        "observedAt": event.observed_at,
        "storedAt": rfc3339(stored.stored_at),
        "storedAfterSeconds": round((stored.stored_at - observed).total_seconds(), 6),
        "foundByList": event.final_state_unknown,
        "degraded": event.degraded,
        **differences.render(),
    }


def _run(one: ControllerRun) -> dict[str, Any]:
    run = one.run
    return {
        "time": _time(run.ended),
        "stage": "reconcile",
        "controller": one.request.controller,
        "request": {
            "cluster": one.request.cluster,
            "namespace": one.request.namespace,
            "name": one.request.name,
        },
        "outcome": run.outcome.value,
        "attempt": run.attempt,
        "queuedAt": _time(run.queued),
        "startedAt": _time(run.started),
        "endedAt": _time(run.ended),
        "waitedSeconds": round(max(0.0, run.started - run.queued), 6),
        "ranSeconds": round(run.ended - run.started, 6),
        "error": run.error,
    }


def _distribution(event: DistributionEvent) -> dict[str, Any]:
    return {
        "time": event.time,
        "stage": "distribution",
        "owner": {"kind": _OWNER_KIND, "namespace": event.namespace, "name": event.name},
        "event": event.event.value,
        "revision": event.revision,
        "wave": event.wave,
        "objects": [one.object for one in event.objects],
        "reason": event.reason,
        "message": event.message,
    }


def _time(seconds: float) -> str:
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def _last_body(events: Sequence[StoredEvent]) -> bytes:
    return next((one.event.object for one in reversed(events) if one.event.object), b"")


def _owner(body: bytes) -> Owner | None:
    try:
        return owner_of(decode(body))
    except (UnreadableBody, MalformedOwner):
        return None
