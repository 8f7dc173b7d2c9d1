"""The query API over an empty fleet; tests fill it before they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rigs.past_api import PastApi, past_query_api
from support.rigs.query_api import QueryApi, query_api

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis


@pytest.fixture
async def api(redis: Redis, valkey_url: str, tmp_path: Path) -> AsyncGenerator[QueryApi]:
    async with query_api(redis, valkey_url, tmp_path) as server:
        yield server


@pytest.fixture
async def past_api(
    redis: Redis, valkey_url: str, nats_url: str, tmp_path: Path
) -> AsyncGenerator[PastApi]:
    async with past_query_api(redis, valkey_url, nats_url, tmp_path) as server:
        yield server
