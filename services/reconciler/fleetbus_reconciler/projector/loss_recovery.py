"""Recovers from the loss of messages in the stream, or of writes in the store (rules P11 to P14).

The loss itself is detected by the applied-offset checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import structlog
from prometheus_client import Gauge

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.registry import Clusters
from fleetbus.errors import BusError
from fleetbus.snapshot.offsets.checkpoint import Loss
from fleetbus.watchers.resync import request_audit
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_reconciler.fleet_status.accepted_uids import AcceptedUids
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests

log = structlog.get_logger()

STREAM_SUBJECTS_HELD: Final = Gauge(
    "fleetbus_stream_subjects", "Subjects that the stream of events holds messages of."
)
STREAM_BYTES: Final = Gauge("fleetbus_stream_bytes", "Size of the stream of events.")
STREAM_MESSAGES: Final = Gauge("fleetbus_stream_messages", "Messages in the stream of events.")


class LossRecovery:
    """Requests again what was lost.

    Args:
        keys: the shards of the snapshot.
        clusters: the registry.
        bus: to wake watchers.
        kv: the bucket.
        state: marks what is no longer complete.
        resyncs: requests lists.
        accepted: the accepted UIDs.
    """

    def __init__(
        self,
        *,
        keys: SnapshotKeys,
        clusters: Clusters,
        bus: Bus,
        kv: KeyValue,
        state: FleetState,
        resyncs: ResyncRequests,
        accepted: AcceptedUids,
    ) -> None:
        self._keys = keys
        self._clusters = clusters
        self._bus = bus
        self._kv = kv
        self._state = state
        self._resyncs = resyncs
        self._accepted = accepted

    async def rebuild(self, shards: AbstractSet[int]) -> None:
        """Fill shards that were emptied (rule P13)."""
        log.error("store_was_empty", shards=sorted(shards))
        await self._state.rebuild(shards)
        try:
            await self._accepted.restore()
        except BusError as e:  # the first heartbeat of each cluster does it
            log.warning("accepted_uids_not_restored", error=str(e))

    async def recover(self, shard: int, loss: Loss, reason: str) -> None:
        """Request lists of everything in a shard.

        Raises:
            BusError: a request was not written; to be repeated.
            StoreEmpty: the store was emptied meanwhile; to be repeated.
            redis.exceptions.RedisError: the store is away; to be repeated.
        """
        if loss is Loss.CONTENT:
            await self.rebuild({shard})
            return
        if loss is Loss.WRITES:
            # What was created in the lost time is not in the snapshot, which must not call itself
            # complete (rule P14). The rows stay, and are served as incomplete.
            await self._state.mark_incomplete(shard, reason)
        for info in self._clusters.all():
            if self._keys.shard_of(info.name) == shard:
                await self._resyncs.request_lists(info.name, reason)

    async def request_audits(self, shard: int) -> None:
        """Request audits of a shard that had been rolled back and is whole again (P15).

        Raises:
            BusError: not all were requested.
        """
        for info in self._clusters.all():
            if self._keys.shard_of(info.name) == shard:
                await request_audit(self._bus, self._kv, info.name)


def update_stream_metrics(state: Mapping[str, Any]) -> None:
    """Show the size of the stream: the server's memory grows with the subjects (rule B16)."""
    STREAM_SUBJECTS_HELD.set(state.get("num_subjects", 0))
    STREAM_BYTES.set(state["bytes"])
    STREAM_MESSAGES.set(state["messages"])
