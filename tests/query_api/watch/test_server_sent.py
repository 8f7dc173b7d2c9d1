"""Server-sent events: their form, where they go on, and the freshness beside them (A4 to A6)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus_query_api.responses.openapi import ItemModel
from fleetbus_query_api.watch.server_sent import FreshnessReports
from support.eventually import eventually
from support.rigs.query_api import ago
from support.stores.snapshot import Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from support.rigs.query_api import QueryApi

PODS = "core/pods"
PATH = "/fleet/v1/events"


@dataclass
class Stream:
    """The events so far."""

    status: int = 0
    type: str = ""
    has_ended: bool = False
    events: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list[Any])

    @property
    def seen(self) -> list[str]:
        """`<event> <cluster>/<name>` of objects."""
        objects = [(name, data) for name, _, data in self.events if "object" in data]
        return [
            f"{name} {data['cluster']}/{(data['object'] or {'metadata': data})['metadata']['name']}"
            for name, data in objects
        ]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [data for event_name, _, data in self.events if event_name == name]

    @property
    def last_id(self) -> str:
        return [identifier for _, identifier, _ in self.events if identifier][-1]


@asynccontextmanager
async def streaming(
    api: QueryApi, *, last: str = "", resource: str = "pods", **query: Any
) -> AsyncGenerator[Stream]:
    stream = Stream()
    headers = {"Last-Event-ID": last} if last else {}

    async def read() -> None:
        block: dict[str, str] = {}
        async with api.client.stream(
            "GET", PATH, params={"resource": resource, **query}, headers=headers, timeout=None
        ) as response:
            stream.status, stream.type = response.status_code, response.headers["content-type"]
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    block[name] = value
                elif "event" in block:
                    data = json.loads(block["data"])
                    stream.events.append((block["event"], block.get("id", ""), data))
                    block = {}
        stream.has_ended = True

    reading = asyncio.create_task(read())
    try:
        await eventually(lambda: stream.events or reading.done())
        yield stream
    finally:
        reading.cancel()
        await asyncio.wait([reading])


@pytest.fixture
async def fleet(api: QueryApi) -> QueryApi:
    await api.add_cluster("eu1", PODS)
    await api.add_cluster("us1", PODS)
    await api.add("eu1", PODS, "old", labels={"app": "web"})
    return api


async def test_a5_changes_of_the_fleet_are_events_with_an_object_and_a_version(fleet: QueryApi):
    async with streaming(fleet) as stream:
        assert stream.type.startswith("text/event-stream")
        await eventually(lambda: stream.named("bookmark"))
        await fleet.add("us1", PODS, "new")
        await fleet.add("eu1", PODS, "old", spec={})
        await eventually(lambda: len(stream.seen) == 2)
        await fleet.snapshot.apply(Source(cluster="us1").deleted("new", 999))
        await eventually(lambda: len(stream.seen) == 3)
        assert stream.seen == ["added us1/new", "modified eu1/old", "deleted us1/new"]
        for _, version, data in stream.events:
            if "object" in data:
                ItemModel.model_validate(data)
                assert int(version) > 10**15


async def test_a6_last_event_id_goes_on_behind_that_event(fleet: QueryApi):
    async with streaming(fleet) as stream:
        await eventually(lambda: stream.named("bookmark"))
        await fleet.add("us1", PODS, "a")
        await eventually(lambda: stream.seen == ["added us1/a"])
    await fleet.add("us1", PODS, "b")
    async with streaming(fleet, last=stream.last_id) as again:
        await eventually(lambda: again.seen == ["added us1/b"])


async def test_a6_the_present_state_can_come_first(fleet: QueryApi):
    async with streaming(fleet, resourceVersion="0", labelSelector="app=web") as stream:
        await eventually(lambda: {"initial": True} in stream.named("bookmark"))
        assert stream.seen == ["added eu1/old"]


@pytest.mark.parametrize("last", ["17", "9" * 18])
async def test_a5_an_id_that_cannot_be_resumed_from_is_an_error_410(fleet: QueryApi, last: str):
    async with streaming(fleet, last=last) as stream:
        await eventually(lambda: stream.has_ended)
        (error,) = stream.named("error")
        assert (stream.status, error["status"]) == (200, 410)
        assert "list again" in error["detail"] or "never issued" in error["detail"]


async def test_a4_a_cluster_that_becomes_incomplete_is_reported(
    fleet: QueryApi, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FreshnessReports, "interval", timedelta(seconds=0.1))
    async with streaming(fleet) as stream:
        await eventually(lambda: stream.named("freshness"))
        assert stream.named("freshness")[0]["incomplete"] == []
        assert stream.named("freshness")[0]["freshness"].keys() == {"eu1", "us1"}
        down: dict[str, Any] = {"connected": False, "reason": "refused", "last_answer": ago(100)}
        await fleet.add_cluster("us1", PODS, **down)
        await eventually(lambda: len(stream.named("freshness")) == 2)
        assert stream.named("freshness")[1]["incomplete"] == ["us1"]
        assert stream.named("freshness")[1]["freshness"].keys() == {"us1"}
        await fleet.add_cluster("us1", PODS)
        await eventually(lambda: len(stream.named("freshness")) == 3)
        assert stream.named("freshness")[2]["incomplete"] == []
        await fleet.add("us1", PODS, "new")
        await eventually(lambda: stream.seen == ["added us1/new"])


async def test_a8_wrong_requests_are_problems(fleet: QueryApi, subtests: pytest.Subtests):
    for query, status, text in [
        ({}, 400, "resource"),
        ({"resource": "nothings"}, 404, "nothings is not watched in any cluster"),
        ({"resource": "pods", "resourceVersion": "x"}, 400, "resourceVersion"),
        ({"resource": "pods", "sort": "a"}, 400, "unknown query parameter 'sort'"),
        ({"resource": "pods", "labelSelector": "a in"}, 400, "label selector"),
        ({"resource": "pods", "fieldSelector": "a"}, 400, "field selector"),
    ]:
        with subtests.test(query=query, status=status, text=text):
            answer = await fleet.get(PATH, **query)
            assert answer.status_code == status
            assert text in answer.json()["detail"]
            assert answer.headers["content-type"] == "application/problem+json"


async def test_a8_a_last_event_id_must_be_one_of_ours(fleet: QueryApi):
    answer = await fleet.client.get(
        PATH, params={"resource": "pods"}, headers={"Last-Event-ID": "x"}
    )
    assert answer.status_code == 400
    assert "Last-Event-ID" in answer.json()["detail"]


async def test_a5_a_body_with_line_breaks_is_one_event(fleet: QueryApi):
    body = b'{\n "metadata": {\r\n  "name": "pretty"}}'
    async with streaming(fleet) as stream:
        await eventually(lambda: stream.named("bookmark"))
        await fleet.add_body("eu1", PODS, "pretty", body)
        await eventually(lambda: stream.seen == ["added eu1/pretty"])


async def test_a5_a_reader_that_is_cut_within_the_present_state_gets_all_of_it(fleet: QueryApi):
    """It is sent by name: an object that comes first may be younger than those behind it."""
    await fleet.add("eu1", PODS, "a-younger-one", labels={"app": "web"})
    async with streaming(fleet, resourceVersion="0") as stream:
        await eventually(lambda: {"initial": True} in stream.named("bookmark"))
        first = next(event for event in stream.events if "object" in event[2])
        assert stream.seen == ["added eu1/a-younger-one", "added eu1/old"]
    async with streaming(fleet, last=first[1], resourceVersion="0") as again:
        await eventually(lambda: again.named("bookmark"))
        assert "added eu1/old" in again.seen


@pytest.mark.parametrize(
    "body", [b'{"metadata":{}}}\n\nevent: added\ndata: {', b'{"metadata":{},"a":"\xff"}', b"[1]"]
)
async def test_w16_a_deletion_whose_body_is_no_object_is_sent_without_it(
    fleet: QueryApi, body: bytes
):
    async with streaming(fleet) as stream:
        await eventually(lambda: stream.named("bookmark"))
        await fleet.snapshot.apply(Source(cluster="eu1").deleted("old", 999, body=body))
        await eventually(lambda: stream.seen == ["deleted eu1/old"])
        (deleted,) = stream.named("deleted")
        assert (deleted["object"], deleted["degraded"]) == (None, "unreadable")
