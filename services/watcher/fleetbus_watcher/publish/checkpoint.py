"""Where a restarted watcher resumes: an optimisation, never a truth (rule W5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus_proto.events import Incarnation, Rank
from fleetbus_proto.keys import kv_checkpoint
from fleetbus_proto.resources import Resource
from fleetbus_proto.versions import is_comparable, version_key
from fleetbus_watcher.incarnation import is_believable

log = structlog.get_logger()

_FORMAT = 1


class HeartbeatAt(msgspec.Struct, frozen=True):
    """The heartbeat after which a checkpoint was written (W10)."""

    subject: str
    seq: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The value of the key, as JSON."""

    incarnation: Incarnation
    rank: Rank
    resource_version: str
    """The low-water mark (W4)."""
    heartbeat: HeartbeatAt = HeartbeatAt("", 0)
    """Filled in once the heartbeat is stored."""
    transform: str = ""
    """Version of what is dropped and hidden; filled in when it is written (W5)."""
    version: str = ""
    """The served version in which the objects were read; filled in likewise (W17)."""
    format: int = _FORMAT

    @property
    def order(self) -> tuple[int, tuple[int, str], tuple[tuple[int, str], int]]:
        """What only grows."""
        return (self.incarnation.number, version_key(self.resource_version), self.rank.key)


_decoder = msgspec.json.Decoder(Checkpoint)


Check = Callable[[HeartbeatAt, Resource, str], Awaitable[bool]]
"""Makes sure of a heartbeat, for the checkpoint of a resource and scope; False if it cannot, and
raises EventsLost if it is gone."""
TransformVersion = Callable[[Resource], str]
"""The version of the transform of a resource."""


class Checkpoints:
    """The checkpoints of one cluster.

    Both replicas of a cluster write the same records, so each write is a compare-and-set that
    only moves forward.

    Args:
        kv: the bucket.
        cluster: whose.
        check: asked about the heartbeat that a record names, unless this process wrote it.
        transform: a record of another transform version does not count.
    """

    def __init__(
        self, kv: KeyValue, cluster: str, check: Check, transform: TransformVersion
    ) -> None:
        self._kv = kv
        self._cluster = cluster
        self._check = check
        self._transform = transform
        self._revisions: dict[str, int] = {}
        self._written: dict[str, HeartbeatAt] = {}

    async def read(
        self, resource: Resource, scope: str, incarnation: Incarnation
    ) -> Checkpoint | None:
        """The record, if a watch may resume from it; a record in doubt counts as none.

        Raises:
            EventsLost: the heartbeat that covers it is gone (W10).
            BusError: nothing is known.
        """
        key = self._key(resource, scope)
        found = await self._read(key)
        is_ours = found is not None and self._is_read_alike(found, resource)
        if found is not None and is_ours and _is_usable(found, incarnation):
            is_own = found.heartbeat == self._written.get(key)
            if is_own or await self._check(found.heartbeat, resource, scope):
                return found
        self._revisions.pop(key, None)  # the first write must look at it again
        return None

    async def write(self, resource: Resource, scope: str, checkpoint: Checkpoint) -> None:
        """Move the record forward; where another replica is further, nothing is written.

        Raises:
            BusError: it may not have been written.
        """
        key = self._key(resource, scope)
        checkpoint = msgspec.structs.replace(
            checkpoint, transform=self._transform(resource), version=resource.version
        )
        value = msgspec.json.encode(checkpoint)
        while True:
            written = await self._kv.update(key, value, self._revisions.get(key, 0))
            if written is not None:
                self._revisions[key] = written
                self._written[key] = checkpoint.heartbeat
                return
            stored = await self._read(key)
            if stored is not None and stored.order >= checkpoint.order:
                self._revisions.pop(key, None)  # it is not ours: look again before each write
                return

    async def _read(self, key: str) -> Checkpoint | None:
        entry = await self._kv.get(key)
        if entry is None:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.revision
        try:
            found = _decoder.decode(entry.value)
        except DECODE_ERRORS as e:
            log.warning("checkpoint_unreadable", key=key, error=str(e))
            return None
        # Else no checkpoint of ours would ever be newer (B8).
        return found if is_believable(found.incarnation.number) else None

    def _is_read_alike(self, found: Checkpoint, resource: Resource) -> bool:
        """A stricter transform must read everything again; another version has other bodies."""
        is_same = found.transform == self._transform(resource)
        return is_same and found.version == resource.version

    def _key(self, resource: Resource, scope: str) -> str:
        return kv_checkpoint(self._cluster, resource.group, resource.plural, scope)


def _is_usable(found: Checkpoint, incarnation: Incarnation) -> bool:
    if found.incarnation != incarnation or found.format != _FORMAT:
        return False
    return is_comparable(found.resource_version) and found.heartbeat.seq > 0
