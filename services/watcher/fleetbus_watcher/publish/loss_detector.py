"""The heartbeats of one replica as a chain that breaks when the bus loses events (rules W9, W10).

Each heartbeat is published on condition that the replica's previous one is the last on its
subject. A stream that was wiped or set back does not have that one, and refuses. Other publishers
cannot hide the loss, as they could if sequences of the whole stream were compared.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import WRONG_LAST_SEQUENCE
from fleetbus.errors import BusError
from fleetbus_proto import codec
from fleetbus_proto.errors import MalformedMessage
from fleetbus_proto.events import Heartbeat
from fleetbus_proto.resources import Resource
from fleetbus_proto.subjects import STREAM, status_subject
from fleetbus_watcher.errors import EventsLost
from fleetbus_watcher.publish.checkpoint import HeartbeatAt
from fleetbus_watcher.publish.publisher import Publisher

log = structlog.get_logger()

_ACTUAL: Final = re.compile(r"wrong last sequence: (\d+)")
_ATTEMPTS: Final = 3
_REMEMBERED: Final = 1024
_TWIN_PATIENCE: Final = timedelta(seconds=5)
"""How long a twin that has just started may take to look at its own past."""
_TWIN_LOOK: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class _Found:
    seq: int
    heartbeat: Heartbeat | None
    """None when the body cannot be read, or is no heartbeat."""


class Chain:
    """The heartbeats of one replica, and those that checkpoints name.

    Args:
        bus: a connection.
        publisher: sends the heartbeats.
        cluster: whom they are about.
        replica: who sends them.
    """

    def __init__(self, *, bus: Bus, publisher: Publisher, cluster: str, replica: str) -> None:
        self._bus = bus
        self._publisher = publisher
        self._cluster = cluster
        self._replica = replica
        self._subject = status_subject(cluster, replica)
        # Sequence of our previous heartbeat, 0 for none; None: not looked for yet.
        self._last: int | None = None
        # The one that was there before the first of this process.
        self._base = 0
        # The latest ones of this process: a bucket that was set back names one of them.
        self._beats: deque[int] = deque(maxlen=_REMEMBERED)
        # Of other replicas: up to where their heartbeats are known to be in order.
        self._sound: dict[str, int] = {}

    def restart(self) -> None:
        """After an alarm: go on from what the stream holds now."""
        self._last = None
        self._beats.clear()
        self._sound.clear()

    async def beat(self, heartbeat: Heartbeat) -> HeartbeatAt | None:
        """Publish a heartbeat; answers where it is stored, None if nothing is known of it.

        Raises:
            EventsLost: the previous one is gone, and with it what was stored at the time.
            BusError: nothing is known.
        """
        for _ in range(_ATTEMPTS):
            ack = await self._publisher.beat(heartbeat, await self._opened())
            if ack.error is None:
                return self._advance(ack.seq)
            if ack.error.err_code != WRONG_LAST_SEQUENCE:
                log.warning("heartbeat_lost", error=ack.error.description)
                return None
            adopted = await self._adopt(ack.error.description)
            if _is_same(adopted, heartbeat):  # stored, but its acknowledgement never came
                return self._advance(adopted.seq)
        log.warning("heartbeat_lost", error="another process beats under the name of this replica")
        return None

    async def verify(self) -> None:
        """At start and after a reconnect: our last heartbeat must still be there (W10).

        Raises:
            EventsLost: it is gone.
            BusError: nothing is known.
        """
        self._sound.clear()
        expected = await self._opened()
        found = await self._find(self._subject)
        actual = found.seq if found is not None else 0
        if actual < expected:
            raise EventsLost(f"heartbeat {expected} is gone, the stream has {actual}")

    async def check(self, at: HeartbeatAt, resource: Resource, scope: str) -> bool:
        """Make sure of the heartbeat that a checkpoint of an earlier life, or of a twin, names.

        Returns:
            False if nothing proves it: the twin has started again and again, and never lived long
            enough to look at its own past. That is no alarm, or a twin that crashes in a loop
            would raise one after the other; the checkpoint counts as none.

        Raises:
            EventsLost: it is not stored any more, nor a newer one of the same replica.
            BusError: nothing is known.
        """
        if at.subject != self._subject:
            return await self._is_sound(at, resource, scope)
        await self._opened()
        if at.seq > self._base and at.seq not in self._beats:
            raise EventsLost(f"heartbeat {at.seq} on {at.subject} is gone")
        return True

    async def latest(self, replica: str) -> int:
        """The sequence of the last heartbeat of a replica; 0 if there is none.

        Raises:
            BusError: nothing is known.
        """
        found = await self._find(status_subject(self._cluster, replica))
        return found.seq if found is not None else 0

    # --- our own ------------------------------------------------------------------------------

    def _advance(self, seq: int) -> HeartbeatAt:
        self._last = seq
        self._beats.append(seq)
        return HeartbeatAt(self._subject, seq)

    async def _opened(self) -> int:
        """The sequence of our previous heartbeat, of whatever boot; 0 if there is none."""
        if self._last is None:
            found = await self._find(self._subject)
            if self._last is None:  # nobody else was faster
                self._last = found.seq if found is not None else 0
                self._base = self._last if self._is_ours(found) else 0
        return self._last

    async def _adopt(self, description: str) -> _Found:
        """Another heartbeat than our last known one is there: perhaps one without an answer."""
        expected = self._last or 0
        told = _ACTUAL.search(description)
        found = await self._find(self._subject)
        actual = int(told[1]) if told else (found.seq if found is not None else 0)
        if found is None or actual < expected or found.seq < expected or not self._is_ours(found):
            raise EventsLost(f"heartbeat {expected} is gone, the stream has {actual}")
        self._last = found.seq
        return found

    def _is_ours(self, found: _Found | None) -> bool:
        beat = found.heartbeat if found is not None else None
        return beat is not None and beat.replica == self._replica

    # --- those of other replicas --------------------------------------------------------------

    async def _is_sound(self, at: HeartbeatAt, resource: Resource, scope: str) -> bool:
        if at.seq <= self._sound.get(at.subject, 0):
            return True
        deadline = asyncio.get_running_loop().time() + _TWIN_PATIENCE.total_seconds()
        while True:
            found = await self._find(at.subject)
            if found is None or found.seq < at.seq:
                raise EventsLost(f"heartbeat {at.seq} on {at.subject} is gone")
            if found.seq == at.seq or _has_looked_back(found.heartbeat, resource, scope):
                self._sound[at.subject] = at.seq
                return True
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("checkpoint_in_doubt", resource=str(resource), heartbeat=at.subject)
                return False
            await asyncio.sleep(_TWIN_LOOK.total_seconds())

    async def _find(self, subject: str) -> _Found | None:
        """The last heartbeat on a subject."""
        message = await self._bus.request(f"$JS.API.DIRECT.GET.{STREAM}.{subject}")
        headers = message.headers or {}
        if headers.get("Status") == "404":
            return None
        if "Nats-Sequence" not in headers:
            raise BusError(f"{subject}: {headers.get('Description') or headers}")
        return _Found(int(headers["Nats-Sequence"]), _decoded(message))


def _decoded(message: Msg) -> Heartbeat | None:
    try:
        found = codec.decode(message.data)
    except MalformedMessage:
        return None
    return found if isinstance(found, Heartbeat) else None


def _is_same(found: _Found, sent: Heartbeat) -> bool:
    beat = found.heartbeat
    return beat is not None and (beat.boot, beat.observed_at) == (sent.boot, sent.observed_at)


def _has_looked_back(beat: Heartbeat | None, resource: Resource, scope: str) -> bool:
    """Whether whoever sent it watches the resource, so that its own chain was checked before.

    One that has only just started proves nothing of what came before.
    """
    return beat is not None and any(
        status.resource_version
        for status in beat.resources
        if (status.group, status.resource, status.scope) == (resource.group, resource.plural, scope)
    )
