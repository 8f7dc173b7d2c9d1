"""The state of the stream and of a durable, read once for all checkpoints of a process (B17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus.errors import BusError
from fleetbus.snapshot.offsets.checkpoint_store import Offset
from fleetbus.snapshot.offsets.stream_end import StreamEnd

if TYPE_CHECKING:
    from fleetbus.bus.connection import Bus

_GATHERED_FOR: Final = timedelta(milliseconds=20)
"""The checkpoints of a process look at about the same time."""


@dataclass(frozen=True, slots=True)
class BusState:
    """The state of the stream and of one consumer, as far as a checkpoint needs it."""

    mark: Offset
    first: int
    last: int
    has_handled: bool
    """Whether the consumer ever received anything."""


class BusStates:
    """Reads the state of the bus.

    Args:
        bus: a connection.
        on_stream_state: called with the server's state of the stream at each read.
    """

    def __init__(
        self, bus: Bus, *, on_stream_state: Callable[[Mapping[str, Any]], None] = lambda _: None
    ) -> None:
        self._bus = bus
        self._on_stream_state = on_stream_state
        self._end = StreamEnd()
        self._coming: dict[str, asyncio.Future[BusState | None]] = {}

    async def read(self, durable: str) -> BusState | None:
        """Read stream and consumer, after this is called; None while the stream is created again.

        Raises:
            BusError: nothing is known.
        """
        if (coming := self._coming.get(durable)) is not None:
            return await asyncio.shield(coming)
        coming = self._coming[durable] = asyncio.get_running_loop().create_future()
        try:
            try:
                await asyncio.sleep(_GATHERED_FOR.total_seconds())
            finally:  # who asks from here on needs a later state
                del self._coming[durable]
            found = await self._read(durable)
        except BaseException as e:
            coming.set_exception(e if isinstance(e, Exception) else BusError("cut off"))
            coming.exception()  # perhaps nobody else waits for it
            raise
        coming.set_result(found)
        return found

    async def _read(self, durable: str) -> BusState | None:
        before = await stream_info(self._bus)
        # Asked second: a consumer with nothing pending has handled all up to the end read above.
        consumer = await consumer_info(self._bus, durable)
        # Again: the server moves an ack floor past messages it drops, as if they had been handled.
        stream = await stream_info(self._bus)
        if before is None or stream is None or before["created"] != stream["created"]:
            return None
        self._on_stream_state(stream["state"])
        if consumer is None:
            return None
        floor = int(consumer["ack_floor"]["stream_seq"])
        return BusState(
            Offset(str(stream["created"]), self._end.low_water(before, consumer), floor),
            int(stream["state"]["first_seq"]),
            int(stream["state"]["last_seq"]),
            has_handled=int(consumer["delivered"]["consumer_seq"]) > 0,
        )
