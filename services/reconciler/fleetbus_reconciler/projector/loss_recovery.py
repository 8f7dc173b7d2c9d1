"""What the projector does when stream or store have lost something (rules P11 to P13).

The loss itself is noticed by its beacon (`fleetbus.snapshot.offsets.checkpoint`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog
from prometheus_client import Gauge

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import KeyValue
from fleetbus.clusters.registry import Clusters
from fleetbus.snapshot.offsets.checkpoint import Loss
from fleetbus.watchers.resync import want_audit
from fleetbus_reconciler.fleet_status.fleet_state import FleetState

log = structlog.get_logger()

STREAM_SUBJECTS_HELD: Final = Gauge(
    "fleetbus_stream_subjects", "Subjects that the stream of events holds messages of."
)
STREAM_BYTES: Final = Gauge("fleetbus_stream_bytes", "Size of the stream of events.")
BUCKET_BYTES: Final = Gauge("fleetbus_bucket_bytes", "Size of the key-value bucket.")
STREAM_MESSAGES: Final = Gauge("fleetbus_stream_messages", "Messages in the stream of events.")


class Losses:
    """The projector's answers to losses.

    Args:
        clusters: the registry.
        bus: a connection.
        kv: where wishes are kept.
        state: takes back what readers were told, and asks for epochs.
        rebuild: fills an emptied store.
    """

    def __init__(
        self,
        *,
        clusters: Clusters,
        bus: Bus,
        kv: KeyValue,
        state: FleetState,
        rebuild: Callable[[], Awaitable[None]],
    ) -> None:
        self._clusters = clusters
        self._bus = bus
        self._kv = kv
        self._state = state
        self._rebuild = rebuild

    async def make_good(self, loss: Loss, reason: str) -> None:
        """Ask for everything anew.

        Raises:
            BusError: a wish was not written; to be repeated.
            StoreEmpty: the store was emptied meanwhile; to be repeated.
            redis.exceptions.RedisError: the store is away; to be repeated.
        """
        if loss is Loss.CONTENT:
            await self._rebuild()
            return
        if loss is Loss.WRITES:
            # What was created in the time that is lost is not in the snapshot, which must not call
            # itself complete (rule P14). The rows stay, and are served as incomplete.
            await self._state.doubt_all(reason)
        await self._state.want_all(reason)

    async def compare(self) -> None:
        """The store had gone back and is whole again: let audits say so (rule P15).

        Raises:
            BusError: not all were asked for.
        """
        for info in self._clusters.all():
            await want_audit(self._bus, self._kv, info.name)


def tell_stream(state: Mapping[str, Any]) -> None:
    """The server's memory grows with the subjects (rule B16)."""
    STREAM_SUBJECTS_HELD.set(state.get("num_subjects", 0))
    STREAM_BYTES.set(state["bytes"])
    STREAM_MESSAGES.set(state["messages"])
