"""An intake over a snapshot that the test writes, and the fleet that it follows."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from redis.asyncio import Redis

from support.rigs.intake import IntakeRig, Provider, intake_rig


@pytest.fixture
def provider() -> Provider:
    return Provider()


@pytest.fixture
async def rig(redis: Redis, provider: Provider) -> AsyncGenerator[IntakeRig]:
    async with intake_rig(redis, provider) as rig:
        yield rig
