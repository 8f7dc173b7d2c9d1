"""Detects losses of the stream and of the store, and repairs them (rules B17, P11, P12).

Every second each consumer writes its applied-offset checkpoint: up to which message its effects are
in the store. It is kept beside these effects, on the same server: the projector has one in each
shard of the snapshot, a controller one beside its queue. With it the consumer detects

- that messages left the stream before they were handled: the stream silently drops what exceeds
  its limits of age or size;
- that the stream is another one, or was rolled back;
- that the store is not the server that acknowledged the last writes, or was rolled back. The
  checkpoint that is found there proves all effects up to it, so the stream is replayed from there.
  Until that is done nothing is reconciled, and absence from the snapshot proves nothing.

The script that writes the checkpoint compares the server with the one that answered before the bus
was asked: after a failover no checkpoint may vouch for effects that went with the old server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from typing import Final

import structlog
from prometheus_client import Counter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.consume import Handle
from fleetbus.bus.reader_groups import BoundDurable
from fleetbus.bus.replay import replay
from fleetbus.errors import FleetbusError
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.offsets.bus_state import BusState, BusStates
from fleetbus.snapshot.offsets.checkpoint_store import (
    Beside,
    CheckpointStore,
    Offset,
    StoreState,
    claimed,
)
from fleetbus.snapshot.offsets.handled import Handled
from fleetbus.snapshot.shards import NewerSnapshot, WrongShards
from fleetbus_proto.keys import SnapshotKeys

log = structlog.get_logger()

CHECK_EVERY: Final = timedelta(seconds=1)
"""Often: a message that was handled and left the stream since the last check looks like a gap."""
_CHECK_EAGERLY: Final = timedelta(milliseconds=200)
"""While somebody waits: the store has lost writes and is not settled yet."""
_ASK_AGAIN_AFTER: Final = timedelta(seconds=60)
GAPS: Final = Counter(
    "fleetbus_stream_gaps_total",
    "How often messages left the stream before a durable consumer had handled them.",
    ["durable"],
)
REPLAYS: Final = Counter(
    "fleetbus_store_replays_total",
    "How often a consumer replayed the stream because the store had lost writes.",
    ["consumer"],
)


class Loss(StrEnum):
    """The kind of a loss."""

    MESSAGES = "messages"
    """Messages left the stream before they were handled."""
    WRITES = "writes"
    """The store lost more writes than the stream still holds, or an unknown number."""
    CONTENT = "content"
    """The store is empty (rule P13)."""


OnLoss = Callable[[Loss, str], Awaitable[None]]


async def _nothing(*_: object) -> None: ...


async def _always(_identity: str) -> bool:
    return True


class OffsetCheckpoint:
    """Keeps a checkpoint of one consumer in every process of it; one of them replays.

    Args:
        bus: a connection.
        states: of the stream and the durable; those of a process share them.
        redis: the store.
        keys: the shards of the snapshot.
        beside: the data that it vouches for.
        consumer: its name; the consumer that replays is named after it.
        durable: the one whose checkpoint is kept; none while this process is not bound.
        filters: the subjects that the consumer reads.
        handle: handles messages, for the replay.
        on_loss: repairs a loss; until it returns the loss stands. A controller needs none: a full
            enqueue follows from the checkpoint.
        on_return: called when a store that had lost writes has caught up.
        is_rest_settled: whether all other data that the consumer needs is settled, too, given the
            identity of the server of this one.
        ask_again_after: the time to read the stream, which the resyncs after a gap fill again.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        states: BusStates,
        redis: Redis,
        keys: SnapshotKeys,
        beside: Beside,
        consumer: str,
        durable: BoundDurable,
        filters: Sequence[str],
        handle: Handle,
        on_loss: OnLoss = _nothing,
        on_return: Callable[[], Awaitable[None]] = _nothing,
        is_rest_settled: Callable[[str], Awaitable[bool]] = _always,
        ask_again_after: timedelta = _ASK_AGAIN_AFTER,
    ) -> None:
        self._bus = bus
        self._states = states
        self._filters = filters
        self._redis = redis
        self._beside = beside
        self._consumer = consumer
        # Two shards may be replayed at the same time.
        self._reader = f"{consumer}_{beside.shard}" if beside.shard else consumer
        self._handle = handle
        self._on_loss = on_loss
        self._on_return = on_return
        self._is_rest_settled = is_rest_settled
        self._ask_again_after = ask_again_after
        self._store = CheckpointStore(redis, keys, beside)
        self._bound = durable
        self._durable = ""
        self._settled, self._wake = asyncio.Event(), asyncio.Event()
        self._log_once = LogOnce()
        self._quiet_until = float("-inf")
        # Generation and offset of the last check: a store that holds less was rolled back.
        self._remembered: tuple[str, Offset] | None = None
        self._handled = Handled()
        REPLAYS.labels(consumer)
        durable.on_change(self._rebind)
        self._rebind()

    @property
    def is_settled(self) -> bool:
        """Whether the store had all effects of this consumer at the last check."""
        return self._settled.is_set()

    async def settled(self, within: timedelta) -> bool:
        """Wait until the store has all effects of this consumer; False if that takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self._settled.wait()
        return self._settled.is_set()

    def note(self, sequences: Sequence[int]) -> None:
        """Record messages that this process has handled, in any order.

        Only this proves that messages which left the stream since the last check were handled.
        """
        self._handled.note(sequences)

    async def note_break(self) -> None:
        """Count messages that are acknowledged and were not handled, like those of a gap.

        Raises:
            redis.exceptions.RedisError: nobody knows whether they were counted; to be repeated.
        """
        await self._store.count_break(self._durable)

    def _rebind(self) -> None:
        durable = self._bound.name
        if durable != self._durable:
            self._durable = durable
            self._remembered = None
            self._handled.clear()
            if durable:
                GAPS.labels(durable)
        self._wake.set()

    async def run(self) -> None:
        """Check now and then at intervals, until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.check()
                self._log_once.reset()
            except (FleetbusError, RedisError) as e:
                # NATS or Redis is away: the next check finds what is missed meanwhile.
                if isinstance(e, WrongShards | NewerSnapshot):  # what is read now is something else
                    self._settled.clear()
                if self._log_once.should_log(str(e)):
                    names = {"consumer": self._consumer, "beside": self._beside.name}
                    log.warning("offset_checkpoint_failed", **names, error=str(e))
            pause = CHECK_EVERY if self.is_settled else min(_CHECK_EAGERLY, CHECK_EVERY)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._wake.wait()

    async def check(self) -> None:
        """Check once, and repair a loss.

        Raises:
            BusError: the stream could not be read, or a loss not be repaired.
            redis.exceptions.RedisError: the store is away.
        """
        durable = self._durable
        seen = await self._store.read(durable or self._consumer)
        if seen.generation is None:
            self._settled.clear()
            self._remembered = None
            self._handled.clear()
            await self._on_loss(Loss.CONTENT, "the store is empty")
            return
        if not durable:
            self._settled.set()  # another watch set is in force; its processes check
            return
        if why := self._why_lost(seen):
            self._settled.clear()
            await self._repair(durable, seen, why)
            return
        if not await self._is_rest_settled(seen.identity):
            self._settled.clear()
            return
        # A store without a checkpoint of ours is settled once it has one.
        if seen.offset is not None:
            self._settled.set()
        await self._compare(durable, seen)

    def _why_lost(self, seen: StoreState) -> str:
        if seen.offset is None:
            return ""
        if seen.run and seen.run != seen.identity:
            return "the store is another server, or was restarted"
        if self._remembered is None:
            return ""
        generation, mark = self._remembered
        is_same = (generation, mark.stream) == (seen.generation, seen.offset.stream)
        return "the store was rolled back" if is_same and seen.offset.low < mark.low else ""

    async def _compare(self, durable: str, seen: StoreState) -> None:
        newest = self._handled.newest
        found = await self._states.read(durable)
        if found is None:
            return
        if newest > found.last:
            self._handled.clear()  # received before the stream was made again, and handled since
        held = seen.offset
        if held is None:
            await self._begin(durable, seen, found, is_lost=found.has_handled)
            return
        if _is_set_back(held, found):
            if _is_another(held, found):
                # The bus was wiped or rolled back. The watchers notice it and list everything (W9).
                log.error("stream_lost", durable=durable)
            else:
                # Rolled back and grown again since; or killed before acknowledgements were on disk.
                log.warning("acknowledgements_lost", durable=durable)
            self._handled.clear()
            await self._write(durable, seen, found.mark, breaks=1)
            return
        handled = self._handled.end_after(held.low)
        low = max(handled, found.mark.low)
        if found.first > handled + 1:
            if time.monotonic() >= self._quiet_until:
                await self._report_gap(durable, seen, found, handled=handled)
            return
        mark = found.mark._replace(low=low)
        if mark != held or not seen.run:
            await self._write(durable, seen, mark)
        else:
            self._remember(seen, mark)

    async def _report_gap(
        self, durable: str, seen: StoreState, found: BusState, *, handled: int
    ) -> None:
        log.error(
            "stream_gap_found",
            durable=durable,
            low_water=handled,
            first_sequence=found.first,
        )
        # First: if this fails the gap stands, and the next check finds it again.
        reason = f"messages left the stream before the {self._consumer} had read them"
        await self._on_loss(Loss.MESSAGES, reason)
        low = max(handled, found.mark.low, found.first - 1)
        await self._write(durable, seen, found.mark._replace(low=low), breaks=1)
        if not self._beside.shard:  # else it is counted once for each shard
            GAPS.labels(durable).inc()
        self._quiet_until = time.monotonic() + self._ask_again_after.total_seconds()

    async def _begin(
        self, durable: str, seen: StoreState, found: BusState, *, is_lost: bool
    ) -> None:
        """Write the first checkpoint, or one that proves nothing of what came before it (P12)."""
        if is_lost:
            await self._on_loss(Loss.WRITES, "it is unknown what the store has lost")
        if await self._write(durable, seen, found.mark, is_new=True):
            self._settled.set()

    async def _write(
        self, durable: str, seen: StoreState, mark: Offset, *, is_new: bool = False, breaks: int = 0
    ) -> bool:
        is_written = await self._store.write(durable, seen, mark, is_new=is_new, breaks=breaks)
        if is_written:
            self._remember(seen, mark)
        return is_written

    def _remember(self, seen: StoreState, mark: Offset) -> None:
        if seen.generation is not None:
            self._remembered = (seen.generation, mark)

    # --- a store that lost writes ---------------------------------------------------------------

    async def _repair(self, durable: str, seen: StoreState, why: str) -> None:
        """Repeat what the store has lost (rule P11); the loss stands until that is done."""
        async with claimed(self._redis, self._beside.claim) as is_ours:
            if not is_ours:
                return  # another process of this consumer does it
            self._handled.clear()
            found = await self._states.read(durable)
            if found is None or seen.offset is None:
                return
            held = seen.offset
            names = {"consumer": self._consumer, "beside": self._beside.name}
            log.error("store_rolled_back", **names, reason=why, low_water=held.low)
            if _is_set_back(held, found) or found.first > held.low + 1:
                await self._begin(durable, seen, found, is_lost=True)
            else:
                await self._replay(durable, seen, found)
        if self.is_settled:
            log.info("store_settled", consumer=self._consumer, beside=self._beside.name)
            await self._on_return()

    async def _replay(self, durable: str, seen: StoreState, found: BusState) -> None:
        held = seen.offset
        if held is None:
            return
        if found.last > held.low:
            await replay(
                *(self._bus, self._reader, self._filters, self._handle),
                first=held.low + 1,
                last=found.last,
            )
        REPLAYS.labels(self._consumer).inc()
        # If the store changed again meanwhile, this is not written, and the next check starts over.
        mark = found.mark._replace(low=max(held.low, found.last))
        if await self._write(durable, seen, mark):
            self._settled.set()


def _is_set_back(held: Offset, found: BusState) -> bool:
    return _is_another(held, found) or held.floor > found.mark.floor


def _is_another(held: Offset, found: BusState) -> bool:
    """Whether the stream is another one, or lacks the end that was handled."""
    return held.stream != found.mark.stream or held.low > found.last
