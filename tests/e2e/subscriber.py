"""A plain subscriber: what a consumer knows that reads events, and takes `deleted` at its word."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, connected
from fleetbus_proto import codec
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key

Place = tuple[str, str]
"""Cluster and resource key, like `core/pods`."""
Found = dict[str, tuple[str, str]]
"""`namespace/name` → uid and resourceVersion."""
Version = tuple[int, Any]


@dataclass
class Subscriber:
    """The last that was said of each object.

    Several watchers tell of the same change, and not at the same moment, so versions decide and
    not the order in which events arrive. Another uid under the same name takes the place.

    Attributes:
        deleted: every uid of which a deletion was received, by place.
        verbs: how many events there were.
    """

    deleted: dict[Place, set[str]] = field(default_factory=lambda: defaultdict(set))
    verbs: Counter[str] = field(default_factory=Counter[str])
    _last: dict[Place, dict[str, tuple[Version, Event]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    @property
    def places(self) -> set[Place]:
        """The clusters and resources of which any event was received."""
        return set(self._last)

    def alive(self, place: Place) -> Found:
        """The objects that exist according to the events received."""
        return {
            key: (event.uid, event.resource_version)
            for key, (_, event) in self._last.get(place, {}).items()
            if event.verb is not Verb.DELETED
        }

    async def receive(self, message: Msg) -> None:
        """Take one message."""
        message_body = codec.decode(message.data)
        if isinstance(message_body, EpochEnd) and message_body.removed:
            # W17: the type is gone, and with it whatever is left of its objects.
            self._last.pop(
                (message_body.cluster, f"{message_body.group}/{message_body.resource}"), None
            )
        elif isinstance(message_body, Event):
            self._take(
                (message_body.cluster, f"{message_body.group}/{message_body.resource}"),
                message_body,
            )

    def _take(self, place: Place, event: Event) -> None:
        self.verbs[event.verb.value] += 1
        if event.verb is Verb.DELETED:
            self.deleted[place].add(event.uid)
        key = f"{event.namespace}/{event.name}"
        version = (event.incarnation.number, version_key(event.resource_version))
        if key not in self._last[place] or self._last[place][key][0] < version:
            self._last[place][key] = (version, event)


@asynccontextmanager
async def subscribed(nats_url: str) -> AsyncGenerator[Subscriber]:
    """Listen until the block ends."""
    subscriber = Subscriber()
    async with connected(nats_url, name="plain-subscriber") as bus:
        await _subscribe(bus, subscriber)
        yield subscriber


async def _subscribe(bus: Bus, subscriber: Subscriber) -> None:
    for subject in ("fleetbus.events.>", "fleetbus.epochs.>"):
        await bus.nc.subscribe(
            subject, cb=subscriber.receive, pending_msgs_limit=0, pending_bytes_limit=0
        )
    await bus.nc.flush()
