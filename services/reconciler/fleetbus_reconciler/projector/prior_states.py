"""Publishes the states that changes replace, where the stream may not have them any more (A9).

Also notes which version of the snapshot was the last one at which time: by that the history finds
what has changed since a time, and the snapshot knows which objects have not changed for long.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

import msgspec
import structlog
from prometheus_client import Counter
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.errors import BusError
from fleetbus.process.log_once import LogOnce
from fleetbus.snapshot.prior_states import KeptState, PriorStates
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.headers import CONTENT_TYPE, MSG_ID
from fleetbus_proto.prior import encode_prior_state, prior_state_id
from fleetbus_proto.subjects import prior_subject

log = structlog.get_logger()

_INTERVAL: Final = timedelta(seconds=1)
_CLOCK_INTERVAL: Final = timedelta(seconds=30)
_CLOCK_KEPT: Final = timedelta(days=2)
_SETTLED_AFTER: Final = timedelta(hours=1)
"""An object that has not changed for so long has its state published when it changes. So everything
is known as of any time that is so much after the first event that is left."""
_BATCH: Final = 100
_HEADER_BYTES: Final = 512

PUBLISHED: Final = Counter(
    "fleetbus_prior_states_published",
    "States published because a change replaced them that came long after the one before.",
)


class PriorStatePublisher:
    """Publishes replaced states, until cancelled.

    Args:
        bus: a connection.
        states: in the store.
        shards: how many the snapshot has.
    """

    def __init__(self, *, bus: Bus, states: PriorStates, shards: int) -> None:
        self._bus = bus
        self._states = states
        self._shards = shards
        self._noted_at = float("-inf")
        self._log_once = LogOnce()

    async def run(self) -> NoReturn:
        """Publish what waits, once a second."""
        while True:
            try:
                await self._turn()
            except (RedisError, BusError, OSError) as e:  # a store is away: it waits until then
                if self._log_once.should_log(str(e)):
                    log.warning("prior_states_not_published", error=str(e))
            await asyncio.sleep(_INTERVAL.total_seconds())

    async def _turn(self) -> None:
        is_due = time.monotonic() - self._noted_at >= _CLOCK_INTERVAL.total_seconds()
        for shard in range(self._shards):
            if is_due:
                now = datetime.now(UTC)
                await self._states.note_clock(shard, now, kept=_CLOCK_KEPT)
                await self._states.settle(shard, now - _SETTLED_AFTER)
            while await self._publish(shard) == _BATCH:
                pass
        if is_due:
            self._noted_at = time.monotonic()

    async def _publish(self, shard: int) -> int:
        """Publish the first states that wait in a shard; returns how many there were."""
        states = await self._states.read(shard, most=_BATCH)
        await asyncio.gather(*map(self._publish_one, states))
        if await self._states.drop(shard, states):
            PUBLISHED.inc(len(states))
        return len(states)

    async def _publish_one(self, state: KeptState) -> None:
        prior = state.prior
        body = encode_prior_state(prior)
        headers = {MSG_ID: prior_state_id(prior), "content-type": CONTENT_TYPE}
        try:
            subject = prior_subject(
                prior.cluster, prior.group, prior.resource, prior.namespace, prior.name
            )
        except InvalidName:
            return  # no event of it can have been published
        if len(body) + _HEADER_BYTES > self._bus.max_payload:
            return  # it came without its body, too
        answer = msgspec.json.decode((await self._bus.request(subject, body, headers=headers)).data)
        if "error" in answer:
            raise BusError(f"cannot store a prior state: {answer['error'].get('description', '')}")
