"""Faults of watches, as aiohttp sees them."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import aiohttp
import httpx
import pytest

from emulator.support.fault_rig import Line, is_silent, read_line, read_rest
from emulator.support.kube_calls import CONFIGMAPS
from fleetbus_emulator.apiserver import (
    Cluster,
    CutWatch,
    Drip,
    DropEvents,
    EndWatch,
    Fail,
    Garble,
    HideBookmarks,
    LagWatch,
    Request,
    StallWatch,
    Watch,
)
from support.eventually import eventually

if TYPE_CHECKING:
    from emulator.support.fault_rig import FaultRig

INITIAL = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


async def read_into(received: bytearray, stream: aiohttp.StreamReader) -> None:
    async for piece in stream.iter_any():
        received += piece


@pytest.mark.parametrize("reset", [False, True])
async def test_a_cut_watch_is_an_error_in_the_midst_of_a_line(faulty: FaultRig, reset: bool):
    faulty.faults.add(CutWatch(after_events=2, reset=reset), verb="watch", count=1)
    received = bytearray()
    async with faulty.watch() as stream:
        faulty.add("a")
        await read_line(stream)
        faulty.add("b")
        message = "reset by peer" if reset else "Not enough data"
        with pytest.raises(aiohttp.ClientPayloadError, match=message):
            await read_into(received, stream)
    assert b"}}\n" not in received
    assert reset or received.startswith(b'{"type":"ADDED"')


async def test_an_ended_watch_is_sound_http_also_in_the_midst_of_a_line(faulty: FaultRig):
    for name in ("a", "b", "c"):
        faulty.add(name)
    faulty.faults.add(EndWatch(after_events=2), verb="watch", count=1)
    async with faulty.watch() as stream:
        assert [line.name for line in await read_rest(stream)] == ["a", "b"]
    faulty.faults.add(EndWatch(after_events=2, mid_line=True), verb="watch", count=1)
    async with faulty.watch() as stream:
        first, half = (await stream.read()).splitlines()
    assert Line(first).name == "a"
    with pytest.raises(json.JSONDecodeError):
        json.loads(half)


async def test_a_stalled_watch_does_not_even_end_at_its_deadline(faulty: FaultRig):
    stall = faulty.faults.add(StallWatch(), verb="watch")
    bookmarks = {"allowWatchBookmarks": "1", "timeoutSeconds": "1"}
    async with faulty.watch(**bookmarks) as stream:
        await asyncio.sleep(1.0)  # the shortest time that a watch can be asked for
        assert await is_silent(stream)
        stall.remove()
        assert await read_rest(stream) == []
        assert await stream.read() == b""


def test_a_stalled_watch_keeps_no_backlog_and_may_come_back_too_late():
    cluster = Cluster("alpha")
    watch = cluster.handle(Request("GET", CONFIGMAPS, {"watch": "1"}))
    assert isinstance(watch, Watch)
    stall = cluster.faults.add(StallWatch(), resource="configmaps")
    for name in ("a", "b"):
        cluster.create("v1/configmaps", {"metadata": {"name": name}}, "default")
        assert watch.read() == b""
    assert (watch.behind, watch.sent) == (2, 0)
    cluster.compact()
    stall.remove()
    (line,) = watch.read().splitlines()
    assert Line(line).object["code"] == 410
    cluster.release(watch)


async def test_the_bookmark_behind_the_initial_events_can_be_hidden_too(faulty: FaultRig):
    faulty.add("a")
    faulty.faults.add(HideBookmarks(), verb="watch", count=1)
    async with faulty.watch(**INITIAL) as stream:
        assert [(await read_line(stream)).type for _ in range(2)] == ["ADDED", "BOOKMARK"]
        assert await is_silent(stream)
    await eventually(lambda: faulty.cluster.open_watches == 0)
    faulty.faults.add(HideBookmarks(initial_end=True), verb="watch", count=1)
    async with faulty.watch(**INITIAL) as stream:
        assert (await read_line(stream)).type == "ADDED"
        assert await is_silent(stream)


async def test_a_watch_that_lags_is_late_with_events_and_its_bookmarks_know(faulty: FaultRig):
    lag = timedelta(milliseconds=150)
    rule = faulty.faults.add(LagWatch(lag), verb="watch")
    clock = asyncio.get_running_loop().time
    start = str(faulty.cluster.resource_version)
    async with faulty.watch(resourceVersion=start, allowWatchBookmarks="1") as stream:
        await read_line(stream)
        began = clock()
        written = int(faulty.add("a")["metadata"]["resourceVersion"])
        while (line := await read_line(stream)).type == "BOOKMARK":
            assert line.rv < written
        assert (line.name, line.rv) == ("a", written)
        assert clock() - began >= lag.total_seconds()
        while (line := await read_line(stream)).rv != faulty.cluster.resource_version:
            assert line.type == "BOOKMARK"
        rule.remove()
        rule = faulty.faults.add(LagWatch(timedelta(hours=1)), verb="watch")
        faulty.add("b")
        assert (await read_line(stream)).type == "BOOKMARK"
        rule.remove()
        while (line := await read_line(stream)).type == "BOOKMARK":
            pass
        assert line.name == "b"


async def test_a_dropped_deletion_is_never_reported_on_any_watch(faulty: FaultRig):
    faulty.add("a")
    start = str(faulty.cluster.resource_version)
    rule = faulty.faults.add(DropEvents("DELETED"), resource="configmaps", namespace="default")
    async with faulty.watch(resourceVersion=start) as stream:
        faulty.remove("a")
        faulty.add("b")
        assert (await read_line(stream)).name == "b"
    async with faulty.watch(resourceVersion=start) as stream:
        assert (await read_line(stream)).name == "b"
    assert rule.hits == 1
    assert await faulty.names() == ["b"]
    rule.remove()
    async with faulty.watch(resourceVersion=start) as stream:
        assert (await read_line(stream)).type == "DELETED"


async def test_dropped_events_are_counted_and_all_watches_agree_which(faulty: FaultRig):
    rule = faulty.faults.add(DropEvents(), skip=1, count=2, name="a", verb="watch")
    start = str(faulty.cluster.resource_version)

    async def values() -> list[str]:
        async with faulty.watch(resourceVersion=start, timeoutSeconds="60") as stream:
            lines = [await read_line(stream) for _ in range(3)]
            return [line.object["data"]["k"] for line in lines]

    reading = [asyncio.ensure_future(values()) for _ in range(2)]
    await eventually(lambda: faulty.cluster.open_watches == 2)
    faulty.add("a", k="0")
    for value in ("1", "2", "3"):
        faulty.cluster.patch("v1/configmaps", "default", "a", {"data": {"k": value}})
    faulty.add("b", k="other")
    expected = ["0", "3", "other"]
    assert await asyncio.gather(*reading) == [expected, expected]
    assert await values() == expected
    assert (rule.hits, rule.active) == (2, False)


async def test_an_object_whose_events_are_dropped_is_not_in_the_first_state_either(
    faulty: FaultRig,
):
    for name in ("a", "b"):
        faulty.add(name)
    faulty.faults.add(DropEvents(), name="a")
    async with faulty.watch() as stream:
        assert (await read_line(stream)).name == "b"
        faulty.remove("a")
        assert await is_silent(stream)


async def test_a_line_of_garbage_is_followed_by_sound_ones(faulty: FaultRig):
    for name in ("a", "b"):
        faulty.add(name)
    faulty.faults.add(Garble("body", after_events=1), verb="watch", count=1)
    async with faulty.watch() as stream:
        assert (await read_line(stream)).name == "a"
        with pytest.raises(json.JSONDecodeError):
            await read_line(stream)
        assert (await read_line(stream)).name == "b"


async def test_a_garbage_chunk_is_an_error_behind_the_lines_before_it(faulty: FaultRig):
    # The C parser of aiohttp 3.14 tells its reader nothing of such a chunk: it waits for ever.
    async with (
        httpx.AsyncClient(base_url=faulty.url) as http,
        http.stream("GET", CONFIGMAPS, params={"watch": "1"}) as answer,
    ):
        lines = answer.aiter_lines()
        faulty.add("a")
        assert Line((await anext(lines)).encode()).name == "a"
        faulty.faults.add(Garble("chunk"), verb="watch", count=1)
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(lines)
    assert faulty.cluster.open_watches == 0


async def test_the_lines_of_a_watch_can_drip(faulty: FaultRig):
    faulty.faults.add(Drip(size=64, pause=timedelta(milliseconds=2)), verb="watch", count=1)
    async with faulty.watch() as stream:
        faulty.add("a")
        pieces = [await stream.readany()]
        while not pieces[-1].endswith(b"\n"):
            pieces.append(await stream.readany())
    assert len(pieces) >= 3
    assert Line(b"".join(pieces)).name == "a"


async def test_an_open_watch_is_no_hit_for_what_cannot_affect_it(faulty: FaultRig):
    async with faulty.watch() as stream:
        rule = faulty.faults.add(Fail(500), verb="watch", count=1)
        faulty.add("a")
        assert (await read_line(stream)).name == "a"
        assert rule.hits == 0
    with pytest.raises(AssertionError):
        async with faulty.watch():
            pass
    assert rule.hits == 1
