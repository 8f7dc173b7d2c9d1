"""A fleet of one cluster whose snapshot the test writes itself."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncGenerator

import pytest
from redis.asyncio import Redis

from support.rigs.one_cluster import Rig, one_cluster


@pytest.fixture
async def rig(redis: Redis, tmp_path: pathlib.Path) -> AsyncGenerator[Rig]:
    async with one_cluster(redis, tmp_path) as opened:
        yield opened
