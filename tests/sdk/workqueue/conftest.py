"""Both queues, with time that the test moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetbus.workqueue import QueuePolicy
from support.stores.workqueue import MemoryRig, RedisRig, Rig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

    from fleetbus.workqueue import Queue


@pytest.fixture
def policy() -> QueuePolicy:
    """The policy of the queue of `rig`; a file of tests may have its own."""
    return QueuePolicy()


@pytest.fixture(params=["redis", "memory"])
async def rig(
    request: pytest.FixtureRequest, redis: Redis, policy: QueuePolicy
) -> AsyncGenerator[Rig]:
    is_redis = request.param == "redis"
    rig = RedisRig(redis, "copier", policy) if is_redis else MemoryRig("copier", policy)
    yield rig
    await rig.queue.aclose()


@pytest.fixture
def queue(rig: Rig) -> Queue:
    return rig.queue
