"""Rule A8: no question and no reader costs more than a bounded share of the process."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import httpx
import pytest

from fleetbus_query_api.limits import large_answers
from fleetbus_query_api.responses.render import json_response
from support.eventually import eventually
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

    from support.rigs.query_api import QueryApi

ALL: Final = "/v1/list?gvr=v1.pods&limit=0"
PAGE: Final = "/fleet/v1/resources/pods?limit=1000"
LARGE: Final = 1_500
_BODY: Final = (
    b'{"metadata":{"creationTimestamp":"2026-01-01T00:00:00Z"},"p":"' + b"y" * 10_000 + b'"}'
)


@pytest.fixture
async def large(api: QueryApi) -> QueryApi:
    """A cluster with 15 MB of pods."""
    await api.add_cluster("eu1")
    await add_pods(api, range(LARGE))
    return api


async def add_pods(api: QueryApi, numbers: range) -> None:
    """Add pods of 10 kB each to eu1."""
    source = Source(rank=(1, 1))
    for at in range(numbers.start, numbers.stop, 250):
        await api.snapshot.apply(
            *[source.added(f"o{at + i}", 100 + at + i, body=_BODY) for i in range(250)]
        )


async def test_a8_a_hostile_question_is_400_with_a_reason(api: QueryApi, subtests: pytest.Subtests):
    for query in [
        "/v1/list?gvr=v1.pods&limit=" + "9" * 4400,
        "/v1/list?gvr=v1.pods&limit=1000001",
        "/v1/list?gvr=v1.pods&limit=-1",
        "/v1/list?gvr=v1.pods&limit=\u0663",
        "/v1/list_with_cluster?gvr=v1.pods&limit=" + "9" * 30,
        "/fleet/v1/resources/pods?limit=" + "9" * 5000,
        "/fleet/v1/resources/pods?limit=1e3",
        "/fleet/v1/resources/pods?continue=" + "x" * 3000,
        "/fleet/v1/resources/" + "a/" * 3000,
        "/v1/list?gvr=" + "." * 3000,
        "/fleet/v1/resources/pods?labelSelector=a in (" + ",".join(map(str, range(2000))) + ")",
        "/fleet/v1/resources/pods?fieldSelector=" + ",".join(f"a.b{n}!=c" for n in range(33)),
        "/fleet/v1/resources/pods?labelSelector=" + ",".join(f"!b{n}" for n in range(33)),
        "/fleet/v1/resources/pods?fieldSelector=a=" + "b" * 5000,
        "/fleet/v1/resources/pods?cluster=" + ",".join(f"c{n}" for n in range(1001)),
        "/v1/list?gvr=v1.pods" + "".join(f"&labels[b{n}]=c" for n in range(33)),
    ]:
        with subtests.test(query=query):
            await api.add_cluster("eu1")
            answer = await api.client.get(query)
            assert answer.status_code == 400, answer.text
            reason = json.loads(answer.text)
            assert reason.get("error") or reason.get("detail")
            assert len(answer.text) < 10_000


async def test_a8_a_selector_of_too_many_requirements_is_refused_by_its_name(api: QueryApi):
    for name in ("fieldSelector", "labelSelector"):
        many = ",".join(f"b{n}!=c" for n in range(300))
        answer = await api.get("/fleet/v1/resources/pods", **{name: many})
        detail = f"{name} has 300 requirements; at most 32 are allowed"
        assert (answer.status_code, answer.json()["detail"]) == (400, detail)


async def test_a8_all_objects_are_streamed_whole_and_in_order(large: QueryApi):
    answer = await large.client.get(ALL)
    assert answer.status_code == 200
    assert len(answer.json()) == LARGE
    assert len(answer.content) == LARGE * (len(_BODY) + 1) + 1


@asynccontextmanager
async def silent_readers(
    api: QueryApi, count: int, path: str
) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """Clients that ask, and do not read."""
    address = urlsplit(str(api.client.base_url))
    streams = [
        await asyncio.open_connection(address.hostname, address.port, limit=1024)
        for _ in range(count)
    ]
    try:
        for _, writer in streams:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await writer.drain()
        yield [reader for reader, _ in streams]
    finally:
        for _, writer in streams:
            writer.transport.abort()


def resident() -> int:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 >> 20


async def test_a8_readers_that_do_not_read_cost_bounded_memory_and_move_nobody(large: QueryApi):
    await add_pods(large, range(LARGE, 4 * LARGE))
    async with silent_readers(large, 1, ALL) as (reader,):  # what the process keeps anyway
        await reader.read(1)
    before = resident()
    async with silent_readers(large, 4, ALL) as readers:
        await eventually(lambda: all(cast("Any", reader)._buffer for reader in readers))
        for _ in range(10):
            assert (await large.get("/fleet/v1/clusters")).status_code == 200
        assert resident() - before < 120, "a page of 16 MiB each, where the answers have 60 MB"


@pytest.mark.parametrize("path", [ALL, PAGE])
async def test_a8_a_slow_reader_is_cut_off(
    large: QueryApi, path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(large_answers, "SLICE_TIMEOUT", timedelta(seconds=0.2))
    async with silent_readers(large, 1, path) as (reader,):
        await eventually(lambda: "slow_client_disconnected" in capsys.readouterr().out)
        assert len(await reader.read()) < 9_000_000, "less than the page has"


async def test_a8_a_reader_that_pauses_now_and_then_is_served_whole(
    large: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(large_answers, "SLICE_TIMEOUT", timedelta(seconds=2))
    taken = 0
    async with silent_readers(large, 1, PAGE) as (reader,):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        assert length > 2**23
        while taken < length:
            taken += len(await reader.read(2**20))
            await asyncio.sleep(0)
    assert taken == length


async def test_a8_only_so_many_lists_are_answered_at_a_time():
    started = 0
    go_on = asyncio.Event()

    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal started
        started += 1
        if scope["path"] != "/fleet/v1/clusters":
            await go_on.wait()
        await json_response(b"{}")(scope, _receive, send)

    limited = large_answers.ListConcurrency(app, patience=timedelta(seconds=0.1))
    transport = httpx.ASGITransport(limited)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(large_answers.MAX_LISTS):
            group.create_task(client.get(PAGE))
        await eventually(lambda: started == large_answers.MAX_LISTS)
        refused = await client.get(PAGE)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "other lists are in progress" in refused.json()["detail"]
        assert (await client.get("/fleet/v1/clusters")).status_code == 200
        go_on.set()
        assert (await client.get(PAGE)).status_code == 200
