"""Checkpoints, from which a restarted watcher resumes: an optimisation, never a truth (W5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import structlog

from fleetbus.bus.key_value import DECODE_ERRORS, KeyValue
from fleetbus_proto.events import Incarnation, Rank
from fleetbus_proto.keys import kv_checkpoint
from fleetbus_proto.resources import Resource
from fleetbus_proto.versions import is_comparable, version_key
from fleetbus_watcher.incarnation import is_plausible

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
    """Version of the transform rules; filled in when it is written (W5)."""
    version: str = ""
    """The API version in which the objects were read; filled in likewise (W17)."""
    format: int = _FORMAT

    @property
    def order(self) -> tuple[int, tuple[int, str], tuple[tuple[int, str], int]]:
        """The order of checkpoints; a record only moves forward."""
        return (self.incarnation.number, version_key(self.resource_version), self.rank.key)


_decoder = msgspec.json.Decoder(Checkpoint)


Check = Callable[[HeartbeatAt, Resource, str], Awaitable[bool]]
"""Verifies a heartbeat for the checkpoint of a resource and scope; False if that is not possible,
and raises EventsLost if it is gone."""
TransformVersion = Callable[[Resource], str]
"""Returns the version of the transform rules of a resource."""


class Checkpoints:
    """The checkpoints of one cluster.

    Peer replicas write the same records, so each write is a compare-and-set that only moves
    forward.

    Args:
        kv: the bucket.
        cluster: its name.
        check: verifies the heartbeat that a record names, unless this process wrote it.
        transform: returns the transform version; a record of another one is ignored.
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
        """Read the record if a watch may resume from it; a record in doubt is ignored.

        Raises:
            EventsLost: the heartbeat that covers it is gone (W10).
            BusError: it could not be read.
        """
        key = self._key(resource, scope)
        stored = await self._read(key)
        is_ours = stored is not None and self._is_read_equally(stored, resource)
        if stored is not None and is_ours and _is_usable(stored, incarnation):
            is_own = stored.heartbeat == self._written.get(key)
            if is_own or await self._check(stored.heartbeat, resource, scope):
                return stored
        self._revisions.pop(key, None)  # the first write must read it again
        return None

    async def write(self, resource: Resource, scope: str, checkpoint: Checkpoint) -> None:
        """Move the record forward; nothing is written where a peer replica is further.

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
                self._revisions.pop(key, None)  # it is not ours: read it again before each write
                return

    async def _read(self, key: str) -> Checkpoint | None:
        entry = await self._kv.get(key)
        if entry is None:
            self._revisions.pop(key, None)
            return None
        self._revisions[key] = entry.revision
        try:
            checkpoint = _decoder.decode(entry.value)
        except DECODE_ERRORS as e:
            log.warning("checkpoint_unreadable", key=key, error=str(e))
            return None
        # Otherwise no checkpoint of ours would ever be newer (B8).
        return checkpoint if is_plausible(checkpoint.incarnation.number) else None

    def _is_read_equally(self, checkpoint: Checkpoint, resource: Resource) -> bool:
        """Whether it was read with the same transform rules and in the same API version."""
        is_same = checkpoint.transform == self._transform(resource)
        return is_same and checkpoint.version == resource.version

    def _key(self, resource: Resource, scope: str) -> str:
        return kv_checkpoint(self._cluster, resource.group, resource.plural, scope)


def _is_usable(checkpoint: Checkpoint, incarnation: Incarnation) -> bool:
    if checkpoint.incarnation != incarnation or checkpoint.format != _FORMAT:
        return False
    return is_comparable(checkpoint.resource_version) and checkpoint.heartbeat.seq > 0
