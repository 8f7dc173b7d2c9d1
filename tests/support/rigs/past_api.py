"""A query API over a stream and a snapshot that were told the same events."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from support.eventually import eventually
from support.rigs.query_api import QueryApi, served
from support.servers.plain_http import http_client
from support.stores.recorded_past import RecordedPast, recorded_past

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis


class PastApi(QueryApi):
    """A query API, and the past that it answers about."""

    past: RecordedPast


@asynccontextmanager
async def past_query_api(
    redis: Redis, valkey_url: str, nats_url: str, folder: Path
) -> AsyncGenerator[PastApi]:
    """A query API that is connected to NATS, over an empty fleet."""
    async with (
        recorded_past(redis, nats_url) as past,
        served(valkey_url, folder, shared={"nats_url": nats_url}) as url,
        http_client(url, timeout=10) as client,
    ):
        api = PastApi(url, client, past.snapshot)
        api.past = past
        await eventually(lambda: _is_connected(api))
        yield api


async def _is_connected(api: PastApi) -> bool:
    return (await api.get("/fleet/v1/history")).status_code == HTTPStatus.OK
