from collections.abc import AsyncGenerator

import pytest
from distributor_rig import Rig, distributor_rig


@pytest.fixture
async def rig() -> AsyncGenerator[Rig]:
    async with distributor_rig() as started:
        yield started
