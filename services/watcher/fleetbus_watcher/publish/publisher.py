"""Publishes messages: their subject, headers and size."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from fleetbus.bus.acks import Ack, Settle
from fleetbus.bus.batch import Outgoing
from fleetbus.bus.connection import Bus
from fleetbus.bus.window import Gathering, Window
from fleetbus.watchers.message_key import KEY_BYTES
from fleetbus_proto import codec, headers
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import OVERSIZED, AuditPage, EpochEnd, Event, Heartbeat
from fleetbus_proto.subjects import epochs_subject, event_subject, status_subject
from fleetbus_watcher.errors import PublishGivenUp, Unpublishable
from fleetbus_watcher.publish.heartbeat_size import fit

_HEARTBEAT_TTL: Final = "1h"
_HEADER_FRAME: Final = 16
_HEADER_LINE: Final = 4
_HEADERS_AT_MOST: Final = 8192
"""Headers stay below this unless a name is very long; then they are counted."""
_NAME_AT_MOST: Final = 512


@dataclass(frozen=True, slots=True)
class Prepared:
    """An encoded message that fits the limits of the bus."""

    subject: str
    body: bytes
    headers: dict[str, str]
    is_degraded: bool


class Publisher:
    """Publishes events, markers and heartbeats of one cluster.

    Attributes:
        published: how many events were handed over so far.
        key: the secret of message ids. Until that of the cluster is known only heartbeats are
            published, whose ids no other replica shares.
    """

    def __init__(self, *, bus: Bus, window: Window) -> None:
        self._bus = bus
        self._window = window
        self.published = 0
        self.key = secrets.token_bytes(KEY_BYTES)

    def prepare(self, event: Event) -> Prepared:
        """Encode an event; one that exceeds the server's limit goes without its body (B11).

        Raises:
            Unpublishable: its names do not fit into a subject.
        """
        try:
            subject = event_subject(
                event.cluster, event.group, event.resource, event.namespace, event.name, event.verb
            )
        except InvalidName as e:
            raise Unpublishable(str(e)) from e
        body, head = codec.encode(event), headers.build(event, self.key)
        if not self._fits(body, head, event.name):
            event = msgspec.structs.replace(event, object=None, degraded=OVERSIZED)
            body = codec.encode(event)
            if not self._fits(body, head, event.name):
                raise Unpublishable(f"the name of the object has {len(event.name)} characters")
        return Prepared(subject, body, head, bool(event.degraded))

    async def publish(self, prepared: Prepared, settle: Settle) -> None:
        """Hand an event to the window; waits while it is full, which stops the reader (W14)."""
        self.published += 1
        await self._window.publish(prepared.subject, prepared.body, prepared.headers, settle)

    def gather(self) -> Gathering:
        """Return a buffer for the events of one list; flush it after each page."""
        return Gathering(self._window)

    async def publish_listed(
        self, prepared: Prepared, settle: Settle, gathering: Gathering
    ) -> None:
        """Hand over an event of a list; it may be sent with the next ones."""
        self.published += 1
        await gathering.publish(Outgoing(prepared.subject, prepared.body, prepared.headers, settle))

    @property
    def max_body(self) -> int:
        """Size limit of a body, without headers."""
        return min(self._bus.max_payload, codec.MAX_BODY_BYTES) - _HEADERS_AT_MOST

    async def publish_marker(self, marker: EpochEnd | AuditPage) -> None:
        """Publish the end of an epoch, or a page of an audit, and wait until it is stored.

        Raises:
            PublishGivenUp: it may not be.
        """
        subject = epochs_subject(marker.cluster, marker.group, marker.resource)
        head = headers.build(marker, self.key)
        ack = await self._window.send(subject, codec.encode(marker), head)
        if ack.error is not None:
            raise PublishGivenUp(ack.error.description)

    async def publish_heartbeat(self, heartbeat: Heartbeat, previous: int) -> Ack:
        """Publish a heartbeat; it expires after an hour, or they would fill the stream.

        Args:
            heartbeat: of one replica.
            previous: the sequence of its last one, 0 for none; if the stream holds another one the
                server refuses with WRONG_LAST_SEQUENCE (W9).
        """
        subject = status_subject(heartbeat.cluster, heartbeat.replica)
        head = {
            **headers.build(heartbeat, self.key),
            "Nats-TTL": _HEARTBEAT_TTL,
            "Nats-Expected-Last-Subject-Sequence": str(previous),
        }
        return await self._window.send(subject, codec.encode(fit(heartbeat, self.max_body)), head)

    def _fits(self, body: bytes, head: dict[str, str], name: str) -> bool:
        limit = min(self._bus.max_payload, codec.MAX_BODY_BYTES)
        if len(name) < _NAME_AT_MOST and len(body) + _HEADERS_AT_MOST <= limit:
            return True
        size = sum(len(key) + len(value) + _HEADER_LINE for key, value in head.items())
        return len(body) + size + _HEADER_FRAME <= limit
