"""The deletions on the stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Container
from datetime import datetime
from typing import Final

from fleetbus.bus.connection import Bus
from fleetbus.bus.stream_reads import read_messages
from fleetbus.run.current import ObjectRef
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import STREAM, Verb, deletions_filter, event_subject
from fleetbus_query_api.past.stored_events import StoredEvent, read_event

_MOST_CLUSTERS: Final = 4
"""Up to so many are read one by one; more of them all at once."""
_MOST_RESOURCES: Final = 3


async def read_deletions(
    bus: Bus,
    *,
    places: Collection[tuple[str, str]],
    since: datetime,
    namespace: str = "",
    name: str = "",
    also_left: bool = False,
    without: Container[str] = frozenset(),
) -> AsyncGenerator[StoredEvent]:
    """Yield the deletions since a point in time, in the order of the stream within a resource.

    What only left the selection of a watcher is none, unless it is asked for: it may still exist
    (rule W6).

    Args:
        bus: a connection.
        places: cluster and resource key of what is wanted.
        since: when the first one was stored.
        namespace: only this one; empty for all.
        name: only this one; empty for all.
        also_left: also what left the selection of a watcher.
        without: subjects whose deletions are left out, looked up as the messages come.

    Raises:
        BusError: the stream cannot be read.
    """
    place_set = frozenset(places)
    for cluster in _few({place[0] for place in places}, _MOST_CLUSTERS):
        for resource in _few({place[1] for place in places}, _MOST_RESOURCES):
            group, _, plural = resource.rpartition("/")
            subject = deletions_filter(
                cluster=cluster, group=group, resource=plural, namespace=namespace, name=name
            )
            async for page in read_messages(bus, STREAM, subject, start=since):
                wanted_ones = (message for message in page if message.subject not in without)
                for stored in filter(None, map(read_event, wanted_ones)):
                    place = stored.event.cluster, stored.event.resource_key
                    if place in place_set and (also_left or is_deletion(stored.event)):
                        yield stored


def deletions_of_object(ref: ObjectRef) -> str:
    """The subject of all deletions of one object."""
    group, _, plural = ref.resource.rpartition("/")
    return event_subject(ref.cluster, group, plural, ref.namespace, ref.name, Verb.DELETED)


def is_deletion(event: Event) -> bool:
    """Whether the object is gone; one that left the selection of a watcher may exist (rule W6)."""
    return event.verb is Verb.DELETED and not event.left_selection


def _few(names: Collection[str], most: int) -> list[str]:
    """The names, or an empty one that stands for all."""
    return sorted(names) if len(names) <= most else [""]
