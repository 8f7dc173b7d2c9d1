"""Detects, by a replica's own heartbeats, that the bus lost stored events (rules W9, W10).

Each heartbeat is published on condition that the replica's previous one is the last on its subject.
A stream that was wiped or reset does not have that one, and refuses. Other publishers cannot hide
the loss, as they could if sequences of the whole stream were compared.

In a NATS cluster any replica of the stream answers a read, also one that lags behind (rule B19). So
each read is compared with what the stream's leader says, or a heartbeat that is only late there
would seem to be lost, and the cluster would be listed again.

Another process may have our name by mistake. Its heartbeats are not a loss: they are adopted, and
once it has proved to live, we take a name of our own (rule W25). A loss cannot hide behind them,
because whoever publishes after a loss is the one that notices it: its own last heartbeat is gone,
or, if it has just started, the ones that the checkpoints name.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import structlog
from nats.aio.msg import Msg

from fleetbus.bus.acks import PERMANENT, read_ack
from fleetbus.bus.connection import Bus, NoAnswer
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
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.timing import USUAL, WatcherTiming

log = structlog.get_logger()

_ACTUAL: Final = re.compile(r"wrong last sequence: (\d+)")
_NEVER: Final = 2**63 - 1
"""A sequence that no message has."""
_LAG_POLL: Final = timedelta(milliseconds=20)
_ATTEMPTS: Final = 3
_REMEMBERED: Final = 1024
_PEER_POLL: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class _Stored:
    seq: int
    heartbeat: Heartbeat | None
    """None if the body is malformed, or not a heartbeat."""


class LossDetector:
    """Publishes and verifies the heartbeats of one replica, and those that checkpoints name.

    Args:
        bus: a connection.
        publisher: sends the heartbeats.
        cluster: that they report.
        replica: the name under which they are sent.
        timing: how long a peer replica, or one of the stream, may take.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        publisher: Publisher,
        cluster: str,
        replica: ReplicaName,
        timing: WatcherTiming = USUAL,
    ) -> None:
        self._bus = bus
        self._publisher = publisher
        self._cluster = cluster
        self._replica = replica
        self._timing = timing
        # Sequence of our previous heartbeat, 0 for none; None: not read yet.
        self._last: int | None = None
        # The latest one on our subject that other processes of our name have published.
        self._base = 0
        # The latest ones of this process: a bucket that was reset may name any of them.
        self._published: deque[int] = deque(maxlen=_REMEMBERED)
        # Of other replicas: up to where their heartbeats are verified.
        self._verified: dict[str, int] = {}

    def restart(self) -> None:
        """Go on, after an alarm, from what the stream holds now."""
        self._last = None
        self._published.clear()
        self._verified.clear()

    async def publish(self, heartbeat: Heartbeat) -> HeartbeatAt | None:
        """Publish a heartbeat; returns where it is stored, None if that is unknown.

        Raises:
            EventsLost: the previous one is gone, and with it what was stored at the time.
            BusError: it may not be stored.
        """
        for _ in range(_ATTEMPTS):
            # The name may have changed in the last attempt.
            heartbeat = msgspec.structs.replace(heartbeat, replica=self._replica.current)
            ack = await self._publisher.publish_heartbeat(heartbeat, await self._previous())
            if ack.error is None:
                return self._advance(ack.seq)
            if ack.error.err_code != WRONG_LAST_SEQUENCE:
                log.warning("heartbeat_lost", error=ack.error.description)
                return None
            adopted = await self._adopt(ack.error.description)
            if _is_same(adopted, heartbeat):  # stored, but its acknowledgement never came
                return self._advance(adopted.seq)
        log.warning("heartbeat_lost", error="other processes publish under the name of this one")
        return None

    async def verify(self) -> None:
        """Make sure, at start and after a reconnect, that our last heartbeat is still stored (W10).

        Raises:
            EventsLost: it is gone.
            BusError: it could not be read.
        """
        self._verified.clear()
        expected = await self._previous()
        stored = await self._find(self._subject)
        actual = stored.seq if stored is not None else 0
        if actual < expected:
            raise EventsLost(f"heartbeat {expected} is gone, the stream has {actual}")

    async def check(self, at: HeartbeatAt, resource: Resource, scope: str) -> bool:
        """Verify the heartbeat that a checkpoint of an earlier life, or of a peer replica, names.

        Returns:
            False if nothing proves it: the peer restarts again and again, and never runs long
            enough to verify its own heartbeats. That is no alarm, or a peer in a crash loop would
            raise one after the other; the checkpoint is ignored.

        Raises:
            EventsLost: neither it nor a newer one of the same replica is stored.
            BusError: it could not be read.
        """
        await self._previous()
        return self._is_known(at) or await self._is_verified(at, resource, scope)

    async def latest(self, replica: str) -> int:
        """Return the sequence of the last heartbeat of a replica; 0 if there is none.

        Raises:
            BusError: it could not be read.
        """
        stored = await self._find(status_subject(self._cluster, replica))
        return stored.seq if stored is not None else 0

    # --- our own ------------------------------------------------------------------------------

    @property
    def _subject(self) -> str:
        return status_subject(self._cluster, self._replica.current)

    def _advance(self, seq: int) -> HeartbeatAt:
        self._last = seq
        self._published.append(seq)
        return HeartbeatAt(self._subject, seq)

    async def _previous(self) -> int:
        """Return the sequence of our previous heartbeat, of whatever boot; 0 if there is none."""
        while self._last is None:
            subject = self._subject
            stored = await self._find(subject)
            # No concurrent call was first, or has replaced our name.
            if self._last is None and subject == self._subject:
                self._last = stored.seq if stored is not None else 0
                self._base = self._last if self._is_ours(stored) else 0
        return self._last

    async def _adopt(self, description: str) -> _Stored:
        """Take the heartbeat that is stored for ours: its acknowledgement may have been lost."""
        expected = self._last or 0
        stated = _ACTUAL.search(description)
        stored = await self._find(self._subject)
        actual = int(stated[1]) if stated else (stored.seq if stored is not None else 0)
        if (
            stored is None
            or actual < expected
            or stored.seq < expected
            or not self._is_ours(stored)
        ):
            raise EventsLost(f"heartbeat {expected} is gone, the stream has {actual}")
        if not self._is_mine(stored):
            self._base = stored.seq
            boot = stored.heartbeat.boot if stored.heartbeat is not None else ""
            if self._replica.is_shared_with(boot):
                self._replica.replace()
                self._last, self._base = None, 0
                return stored
        self._last = stored.seq
        return stored

    def _is_ours(self, stored: _Stored | None) -> bool:
        beat = stored.heartbeat if stored is not None else None
        return beat is not None and beat.replica == self._replica.current

    def _is_mine(self, stored: _Stored) -> bool:
        """Whether this process sent it; then no other was stored since the one before it."""
        return stored.heartbeat is not None and stored.heartbeat.boot == self._replica.boot

    # --- those of other replicas --------------------------------------------------------------

    def _is_known(self, at: HeartbeatAt) -> bool:
        """Whether we sent it, perhaps under our former name, or have adopted it or one after it."""
        is_adopted = at.subject == self._subject and at.seq <= self._base
        return is_adopted or at.seq in self._published

    async def _is_verified(self, at: HeartbeatAt, resource: Resource, scope: str) -> bool:
        if at.seq <= self._verified.get(at.subject, 0):
            return True
        deadline = asyncio.get_running_loop().time() + self._timing.peer_verifies.total_seconds()
        while True:
            stored = await self._find(at.subject)
            if self._is_known(at):  # by now: we have adopted it, and published another after it
                return True
            if stored is None or stored.seq < at.seq or self._is_mine(stored):
                raise EventsLost(f"heartbeat {at.seq} on {at.subject} is gone")
            if stored.seq == at.seq or _has_verified(stored.heartbeat, resource, scope):
                self._verified[at.subject] = at.seq
                return True
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("checkpoint_in_doubt", resource=str(resource), heartbeat=at.subject)
                return False
            await asyncio.sleep(_PEER_POLL.total_seconds())

    async def _find(self, subject: str) -> _Stored | None:
        """Read the last heartbeat on a subject, at least as new as the stream's leader has it."""
        deadline = asyncio.get_running_loop().time() + self._timing.stream_lag.total_seconds()
        while True:
            least = await self._last_sequence(subject)
            stored = await self._read(subject)
            if least is not None and (stored.seq if stored is not None else 0) >= least:
                return stored
            if asyncio.get_running_loop().time() >= deadline:
                raise NoAnswer(f"{subject}: a replica of the stream lags behind its leader")
            await asyncio.sleep(_LAG_POLL.total_seconds())

    async def _last_sequence(self, subject: str) -> int | None:
        """The last sequence on a subject by the stream's leader; None while it is being written.

        A watcher has no right to ask the leader, but only the leader refuses a message, and says
        why: this one is never stored.
        """
        answer = await self._bus.request(
            subject, headers={"Nats-Expected-Last-Subject-Sequence": str(_NEVER)}
        )
        error = read_ack(answer.data).error
        if error is None or error.code != PERMANENT:
            raise BusError(f"{subject}: {error.description if error else 'not refused'}")
        stated = _ACTUAL.search(error.description)
        return int(stated[1]) if stated else None

    async def _read(self, subject: str) -> _Stored | None:
        message = await self._bus.request(f"$JS.API.DIRECT.GET.{STREAM}.{subject}")
        headers = message.headers or {}
        if headers.get("Status") == "404":
            return None
        if "Nats-Sequence" not in headers:
            raise BusError(f"{subject}: {headers.get('Description') or headers}")
        return _Stored(int(headers["Nats-Sequence"]), _decoded(message))


def _decoded(message: Msg) -> Heartbeat | None:
    try:
        heartbeat = codec.decode(message.data)
    except MalformedMessage:
        return None
    return heartbeat if isinstance(heartbeat, Heartbeat) else None


def _is_same(stored: _Stored, sent: Heartbeat) -> bool:
    beat = stored.heartbeat
    return beat is not None and (beat.boot, beat.observed_at) == (sent.boot, sent.observed_at)


def _has_verified(beat: Heartbeat | None, resource: Resource, scope: str) -> bool:
    """Whether its sender watches the resource, and so has verified its own heartbeats before.

    One that has only just started proves nothing about earlier ones.
    """
    return beat is not None and any(
        status.resource_version
        for status in beat.resources
        if (status.group, status.resource, status.scope) == (resource.group, resource.plural, scope)
    )
