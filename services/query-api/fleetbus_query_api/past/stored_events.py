"""Events with their place in the stream, and their order (rule P2)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleetbus.bus.stream_reads import StoredMessage
from fleetbus.process.clock import now_ms
from fleetbus.run.current import ObjectRef
from fleetbus_proto.admission import admit
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb, events_of_object
from fleetbus_proto.versions import version_key


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with its place in the stream."""

    event: Event
    sequence: int
    stored_at: datetime


def read_event(message: StoredMessage) -> StoredEvent | None:
    """The event of a message; None if it is invalid, and so was never applied."""
    try:
        event = admit(message.subject, message.headers, message.body, now_ms=now_ms())
    except MalformedMessage:
        return None
    if not isinstance(event, Event):
        return None
    return StoredEvent(event, message.sequence, message.stored_at)


def subject_of(ref: ObjectRef) -> str:
    """The filter of all events of one object."""
    group, _, plural = ref.resource.rpartition("/")
    return events_of_object(ref.cluster, group, plural, ref.namespace, ref.name)


def ref_of(event: Event) -> ObjectRef:
    """The object of an event."""
    return ObjectRef(event.cluster, event.resource_key, event.namespace, event.name)


def order_of(stored: StoredEvent) -> tuple[int, tuple[int, str], int, int]:
    """Newer events are greater (rule P2).

    A list that holds an object is as new as the list itself: it disproves an earlier deletion.
    """
    event = stored.event
    version = version_key(event.resource_version)
    if event.verb is Verb.LISTED:
        version = max(version, version_key(event.epoch.resource_version))
    # What left one selection at this version may be in another (rule W6).
    is_deletion = event.verb is Verb.DELETED and not event.left_selection
    is_left = event.verb is Verb.DELETED and event.left_selection
    return event.incarnation.number, version, is_deletion - is_left, stored.sequence
