"""Answers what happened to one object: change, bus, queue, reconcile, apply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from fleetbus.archive import EventFilter
from fleetbus.bus.stream_reads import read_last
from fleetbus.errors import MalformedOwner
from fleetbus.ownership import Owner, owner_of
from fleetbus.process.clock import rfc3339
from fleetbus.run.current import ObjectRef
from fleetbus.snapshot import SnapshotReader
from fleetbus_proto.subjects import STREAM, Verb
from fleetbus_query_api.catalog.readable import Selection
from fleetbus_query_api.fields.bodies import UnreadableBody, decode
from fleetbus_query_api.history.actions import Actions
from fleetbus_query_api.history.latest import Latest
from fleetbus_query_api.history.parameters import TimelineParameters
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import ObjectListing, describe_resource, members_of
from fleetbus_query_api.past.differences import NONE, Differences, compare_bodies
from fleetbus_query_api.past.states import PastStates
from fleetbus_query_api.past.stored_events import StoredEvent, read_event, subject_of
from fleetbus_query_api.past.window import Asked, Windows
from fleetbus_query_api.relations.owners import ObjectPath
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import render_freshness


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
        actions: what was done about the object, and for its owner.
        slices: run the comparisons.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        listing: ObjectListing,
        windows: Windows,
        actions: Actions,
        slices: TimeSlices,
    ) -> None:
        self._reader = reader
        self._listing = listing
        self._windows = windows
        self._actions = actions
        self._slices = slices

    async def show(self, user: User, path: ObjectPath, parameters: TimelineParameters) -> bytes:
        """Show what happened to an object, the latest last.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such resource or cluster, or the user may not get the object; or
                nothing at all is known of such an object.
            InvalidTime: the time is malformed.
            UnavailableProblem: there is no connection to NATS.
            BusError: the stream cannot be read.
        """
        selection = Selection(
            verb="get",
            resource=path.resource,
            clusters=[path.cluster],
            namespace=path.namespace,
            name=path.name,
        )
        readable = await self._listing.find(user, selection)
        freshness = await self._listing.freshness(readable, path.namespace)
        if not members_of(readable):
            raise NotFoundProblem(
                f"no such object: {path.cluster[:200]} is not in the fleet, does not watch it, or"
                " you may not read it there",
                **render_freshness(freshness),
            )
        ref = ObjectRef(path.cluster, readable.resource.key, path.namespace, path.name)
        past = await self._windows.ask_since(parameters.since)
        changes = await _last_changes(past, ref, parameters.limit)
        body = await self._reader.body(*ref)
        if not changes.events and body is None:
            raise NotFoundProblem(
                f"no such object: there is none now, and was none since {rfc3339(past.since)}",
                **render_freshness(freshness),
            )
        entries = await self._describe(past, ref, changes)
        owner = _owner(body or _last_body(changes.events))
        entries += await self._actions.find(user, past, ref, owner)
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
                "resource": describe_resource(readable.resource),
                **render_freshness(freshness),
            }
        )

    async def _describe(
        self, past: Asked, ref: ObjectRef, changes: _Changes
    ) -> list[dict[str, Any]]:
        """Describe changes, each with its differences to the one before."""
        events = changes.events
        before = b""
        # Of what is older than the stream only the archive knows, and it has no index of states.
        is_known = bool(events) and events[0].stored_at >= past.window.start
        if is_known and events[0].event.verb in (Verb.MODIFIED, Verb.LISTED):
            states = PastStates(bus=past.bus, reader=self._reader)
            before = (await states.at([ref], events[0].stored_at))[ref].body
        entries: list[dict[str, Any]] = []

        def add(stored: StoredEvent) -> None:
            nonlocal before
            body = stored.event.object or b""
            is_new = stored.event.verb is Verb.ADDED or not before or not body
            entries.append(_change(stored, NONE if is_new else compare_bodies(before, body)))
            before = b"" if stored.event.verb is Verb.DELETED else body or before

        await self._slices.run(add, events)
        return entries


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
    older = Latest[StoredEvent](
        limit - len(events), size_of=lambda stored_event: len(stored_event.event.object or b"")
    )
    async for stored in past.older.read(_filter_of(ref)):
        older.add(stored)
    return _Changes([*older.kept, *events], older.total > len(older.kept))


def _filter_of(ref: ObjectRef) -> EventFilter:
    group, _, plural = ref.resource.rpartition("/")
    return EventFilter(ref.cluster, group, plural, ref.namespace, ref.name)


def _change(stored: StoredEvent, differences: Differences) -> dict[str, Any]:
    event = stored.event
    return {
        "time": rfc3339(stored.stored_at),
        "stage": "change",
        "verb": event.verb.value,
        "resourceVersion": event.resource_version,
        "uid": event.uid,
        "sequence": stored.sequence,
        "observedAt": event.observed_at,
        "storedAt": rfc3339(stored.stored_at),
        "storedAfterSeconds": _delay(event.observed_at, stored.stored_at),
        "foundByList": event.final_state_unknown,
        "degraded": event.degraded,
        **differences.render(),
    }


def _delay(observed_at: str, stored_at: datetime) -> float | None:
    """The seconds from the watcher to the stream; None if the watcher's time is malformed."""
    try:
        return round((stored_at - datetime.fromisoformat(observed_at)).total_seconds(), 6)
    except (ValueError, TypeError, OverflowError):
        return None


def _last_body(events: Sequence[StoredEvent]) -> bytes:
    return next((stored.event.object for stored in reversed(events) if stored.event.object), b"")


def _owner(body: bytes) -> Owner | None:
    try:
        return owner_of(decode(body))
    except (UnreadableBody, MalformedOwner):
        return None
