from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.stores.recorded_past import RecordedPast, recorded_past

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis


@pytest.fixture
async def past(redis: Redis, nats_url: str) -> AsyncGenerator[RecordedPast]:
    async with recorded_past(redis, nats_url) as recorded:
        yield recorded
