"""Rule A8: one user's flood is answered 429, and takes nothing from another user."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client import REGISTRY

from fleetbus_cli import api_client
from fleetbus_cli.target import Target
from fleetbus_query_api.limits import token_buckets
from fleetbus_query_api.limits.user_limits import UserLimits
from fleetbus_query_api.responses.render import json_response
from fleetbus_query_api.settings import QueryApiSettings
from support.eventually import eventually
from support.rigs.query_api import served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from starlette.types import Receive, Scope, Send

    from support.rigs.query_api import QueryApi

PATH = "/fleet/v1/clusters"


def refused(limit: str) -> float:
    name = "fleetbus_query_api_refused_requests_total"
    return REGISTRY.get_sample_value(name, {"limit": limit}) or 0


class Limited:
    """An application behind the limits, whose requests wait while the gate is closed."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.started = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.limits = UserLimits(self._answer, QueryApiSettings(**settings), lambda: self.now)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started += 1
        await self.gate.wait()
        await json_response(b"{}")(scope, receive, send)

    def client(self, address: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.limits, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def statuses(client: httpx.AsyncClient, count: int) -> list[int]:
    return [(await client.get(PATH)).status_code for _ in range(count)]


async def test_a8_a_user_has_a_burst_and_then_a_rate_and_gets_retry_after():
    limited = Limited(user_requests_per_second=0.5, user_request_burst=3)
    before = refused("rate")
    async with limited.client("127.0.0.1") as first, limited.client("127.0.0.2") as other:
        assert await statuses(first, 5) == [200, 200, 200, 429, 429]
        answer = await first.get(PATH)
        assert answer.headers["retry-after"] == "2"
        assert answer.json()["detail"] == "more than 0.5 requests per second"
        assert refused("rate") == before + 3
        assert await statuses(other, 3) == [200, 200, 200]
        limited.now += 2
        assert await statuses(first, 2) == [200, 429]
        limited.now += 3600
        assert await statuses(first, 4) == [200, 200, 200, 429], "silence saves up one burst"


async def test_a8_a_user_has_so_many_requests_at_a_time():
    limited = Limited(user_concurrency=2)
    limited.gate.clear()
    before = refused("concurrency")
    async with (
        limited.client("127.0.0.1") as first,
        limited.client("127.0.0.2") as other,
        asyncio.TaskGroup() as group,
    ):
        requests = [group.create_task(first.get(PATH)) for _ in range(2)]
        await eventually(lambda: limited.started == 2)
        answer = await first.get(PATH)
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert refused("concurrency") == before + 1
        requests += [group.create_task(other.get(PATH))]
        await eventually(lambda: limited.started == 3)
        limited.gate.set()
        assert {(await each).status_code for each in requests} == {200}
        assert await statuses(first, 1) == [200]


async def test_a8_a_request_that_fails_or_is_cut_off_is_not_counted_for_ever():
    async def fail(*_: object) -> None:
        raise ConnectionResetError

    app = UserLimits(fail, QueryApiSettings(user_concurrency=1))
    scope = {"type": "http", "path": PATH, "client": ("127.0.0.1", 1)}
    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            await app(scope, None, None)  # type: ignore[arg-type] -- neither is used


async def test_a8_invented_addresses_fill_a_table_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(token_buckets, "MAX_NAMES", 10)
    limited = Limited(user_request_burst=1, user_requests_per_second=0.001)
    for number in range(50):
        async with limited.client(f"127.0.1.{number}") as client:
            assert await statuses(client, 1) == [200]
        async with limited.client("127.0.0.1") as flood:
            assert await statuses(flood, 1) == [200 if number == 0 else 429], "still known"
    assert len(limited.limits.users) == 10


async def test_a8_an_invented_token_is_no_other_user():
    limited = Limited(user_request_burst=1, user_requests_per_second=0.001)
    async with limited.client("127.0.0.1") as client:
        answers = [
            await client.get(PATH, headers={"Authorization": f"Bearer t{number}"})
            for number in range(2)
        ]
    assert [answer.status_code for answer in answers] == [200, 429]


@asynccontextmanager
async def client_from(address: str, url: str) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(transport=transport, base_url=url) as client:
        yield client


async def test_a8_a_flood_from_one_address_starves_no_other(
    api: QueryApi, valkey_url: str, tmp_path: Path
):
    await api.add_cluster("c1")
    (folder := tmp_path / "limited").mkdir()
    settings: dict[str, Any] = {
        "user_requests_per_second": 5,
        "user_request_burst": 10,
        "user_concurrency": 4,
    }
    async with (
        served(valkey_url, folder, **settings) as url,
        client_from("127.0.0.1", url) as flood,
        client_from("127.0.0.2", url) as calm,
    ):
        path = "/fleet/v1/resources/pods"
        flooded = await asyncio.gather(*(flood.get(path) for _ in range(60)))
        assert [(await calm.get(path)).status_code for _ in range(5)] == [200] * 5
        answers = [answer.status_code for answer in flooded]
        assert set(answers) == {200, 429}
        assert answers.count(200) < 20
        assert all("retry-after" in each.headers for each in flooded if each.status_code == 429)


async def test_a8_the_command_line_asks_again_when_it_may(
    api: QueryApi, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await api.add_cluster("c1")
    for name in "abcd":
        await api.add("c1", "core/pods", name)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        sleep(seconds / 20)  # the limit below allows it

    sleep = time.sleep
    monkeypatch.setattr(api_client, "PAGE", 1)
    monkeypatch.setattr("fleetbus_cli.api_client.time.sleep", wait)
    (folder := tmp_path / "limited").mkdir()
    settings: dict[str, Any] = {"user_requests_per_second": 25, "user_request_burst": 1}
    async with served(valkey_url, folder, **settings) as url:
        client = api_client.ApiClient(Target(api_url=url))
        listed = await asyncio.to_thread(client.list, "pods", {}, 0)
    assert [item.name for item in listed.items] == ["a", "b", "c", "d"]
    assert set(waits) == {1}
