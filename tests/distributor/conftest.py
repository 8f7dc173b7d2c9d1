from collections.abc import AsyncGenerator

import pytest

from support.rigs.distributor import Rig, distributor_rig


@pytest.fixture
async def rig(valkey_url: str) -> AsyncGenerator[Rig]:
    async with distributor_rig(redis_url=valkey_url) as started:
        yield started
