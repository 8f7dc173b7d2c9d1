"""Handles the messages of each shard apart, so that one that is away stops no other (rule P9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.consume import Handle, PartlyHandled
from fleetbus.errors import StoreError
from fleetbus_proto.admission import cluster_of
from fleetbus_proto.keys import SnapshotKeys

_PATIENCE: Final = timedelta(seconds=10)
_PROBE_EVERY: Final = timedelta(seconds=1)


class ShardAway(Exception):
    """The server of a shard has not answered since it failed."""


_OF_STORE: Final = (RedisError, StoreError, ShardAway, OSError, TimeoutError)


class ByShard:
    """Divides batches among the shards of the snapshot.

    With one shard a batch is handled as a whole.

    Args:
        keys: the shards.
        handle: handles messages about clusters of one shard.
        probe: asks a shard anything; raises while it is away.
        is_open: whether the messages of a shard may be handled.
        patience: how long the others wait for a shard whose server does not answer.
        probe_every: interval at which a failed shard is probed.
    """

    def __init__(
        self,
        keys: SnapshotKeys,
        handle: Handle,
        *,
        probe: Callable[[int], Awaitable[object]],
        is_open: Callable[[int], bool] = lambda _shard: True,
        patience: timedelta = _PATIENCE,
        probe_every: timedelta = _PROBE_EVERY,
    ) -> None:
        self._keys = keys
        self._handle = handle
        self._probe = probe
        self._is_open = is_open
        self._patience = patience.total_seconds()
        self._probe_every = probe_every.total_seconds()
        # The shards that failed, and the task that waits until each answers again: a server that
        # hangs would else hold up the others with every batch.
        self._away: dict[int, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        """Stop waiting for shards."""
        tasks = list(self._away.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def handle(self, deliveries: Sequence[Delivery]) -> None:
        """Handle a batch.

        Raises:
            PartlyHandled: the messages of a shard were not handled, and there are several; or the
                handler has handled a part only.
            Exception: raised by the handler, and not about the store; all of it comes again.
        """
        if self._keys.shards == 1:
            await self._handle(deliveries)
            return
        parts = split_by_shard(self._keys, deliveries)
        answers = await asyncio.gather(
            *(self._handle_part(*portion) for portion in parts.items()), return_exceptions=True
        )
        failed: set[int] = set()
        cause: Exception | None = None
        for portion, answer in zip(parts.values(), answers, strict=True):
            if isinstance(answer, _OF_STORE):
                failed |= {delivery.sequence for delivery in portion}
                cause = cause if cause and isinstance(answer, ShardAway) else answer
            elif isinstance(answer, PartlyHandled):
                failed |= answer.failed
                cause = cause or answer.cause
            elif answer is not None:
                raise answer
        if cause is not None:
            raise PartlyHandled(failed, cause)

    async def _handle_part(self, shard: int, deliveries: Sequence[Delivery]) -> None:
        if not self._is_open(shard) or shard in self._away:
            raise ShardAway(f"shard {shard} of the snapshot does not answer")
        try:
            async with asyncio.timeout(self._patience):
                await self._handle(deliveries)
        except _OF_STORE:
            if shard not in self._away:
                waiting = self._wait_for(shard)
                self._away[shard] = asyncio.create_task(waiting, name=f"probe shard {shard}")
            raise

    async def _wait_for(self, shard: int) -> None:
        is_away = True
        while is_away:
            await asyncio.sleep(self._probe_every)
            with suppress(*_OF_STORE):
                async with asyncio.timeout(self._patience):
                    await self._probe(shard)
                is_away = False
        del self._away[shard]


def split_by_shard(keys: SnapshotKeys, deliveries: Sequence[Delivery]) -> dict[int, list[Delivery]]:
    """Group messages by the shard of their cluster; what names no cluster comes with the first."""
    parts: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        cluster = cluster_of(delivery.subject)
        parts.setdefault(keys.shard_of(cluster) if cluster else 0, []).append(delivery)
    return parts
