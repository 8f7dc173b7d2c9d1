"""A watcher between a hostile API server and NATS: rules W16, W8, W2, B11, S1."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest
from prometheus_client import REGISTRY

from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.list_watch.listing import ListPage, WatchTarget, list_pages
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto.events import Event
from fleetbus_proto.resources import parse_resource
from support.eventually import eventually
from support.hostile.objects import BOOKMARK, CANARY, NO_EVENTS, Fate, corpus, document, watch_line
from support.hostile.server import HostileServer
from support.rigs.watcher import Rig, rig_for
from support.rows import each_row

TARGET = WatchTarget(parse_resource("v1/configmaps"))
SOON = timedelta(seconds=15)


@pytest.fixture
async def own(tmp_path: Path) -> AsyncGenerator[Rig]:
    """A NATS of its own, which takes messages up to 8 MiB."""
    async with nats_server(store_dir=tmp_path) as nats, rig_for(nats.url, "hostile") as opened:
        yield opened


def stored(folder: Path) -> bytes:
    """All that NATS has on disk."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


class Watching:
    """A watcher of a hostile server; used as a context manager."""

    def __init__(self, rig: Rig, server: HostileServer) -> None:
        self._rig = rig
        self.task = rig.start(config=server.config)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        assert not self.task.done(), "it crashed"
        await self._rig.stop(self.task)

    async def events(self) -> list[Event]:
        return await self._rig.events()

    async def receives(self, server: HostileServer, name: str, version: str) -> bool:
        """Whether an object that is said again and again has come through."""
        server.say(watch_line(document(name, version)))
        return any(event.name == name for event in await self.events())

    async def state(self) -> tuple[str, str]:
        status = await self._rig.status()
        return (status.state, status.reason) if status else ("", "")

    async def is_state(self, state: str, reason: str = "") -> bool:
        return await self.state() == (state, reason)


def counted(metric: str) -> float:
    labels = {"cluster": "hostile", "resource": "core/configmaps"}
    return REGISTRY.get_sample_value(f"fleetbus_watcher_{metric}_total", labels) or 0


async def test_w16_b11_what_cannot_be_sent_whole_is_sent_degraded_and_counts(
    own: Rig, tmp_path: Path
):
    """One hostile list, and no epoch without an end because of it."""
    hostile = [each for each in corpus() if each.fate is not Fate.LOST]
    sound = document("sound", "50")
    async with HostileServer([*(each.body for each in hostile), sound]).serve() as server:
        before = counted("degraded")
        async with Watching(own, server) as watching:
            await eventually(own.ends, SOON)
            assert (await own.ends())[0].count == len(hostile) + 1
            events = await watching.events()
            # The watch that says so begins after the end of the list.
            await eventually(lambda: watching.is_state("watching"), SOON)
        assert server.lists == 1
    assert len(events) == len(hostile) + 1
    for each, event in zip(hostile, events, strict=False):
        assert (event.object is None) == (each.fate is Fate.DEGRADED), each.title
        degraded = "oversized" if each.title == "9 MiB" else "unreadable"
        assert event.degraded == ("" if event.object else degraded), each.title
    assert counted("degraded") - before == sum(each.fate is Fate.DEGRADED for each in hostile)
    assert b"sound" in stored(tmp_path)
    assert CANARY not in stored(tmp_path)


async def test_w16_an_object_without_a_readable_key_leaves_its_epoch_without_an_end(own: Rig):
    lost = [each for each in corpus() if each.fate is Fate.LOST and each.is_framed]
    before = counted("unreadable")
    async with HostileServer([document("sound", "50")]).serve() as server:
        async with Watching(own, server) as watching:
            await eventually(own.ends, SOON)
        server.items += [each.body for each in lost]
        server.version = "100001"
        await own.kv.delete("hostile.checkpoint.core.configmaps.all")
        async with Watching(own, server) as watching:
            await eventually(lambda: watching.is_state("failing", "Unreadable"), SOON)
            await eventually(lambda: server.lists >= 3, SOON)  # it is tried once more, no oftener
            await eventually(lambda: watching.receives(server, "later", "100001"))
            assert len(await own.ends()) == 1
            assert await watching.is_state("failing", "Unreadable")
            assert not any(str(event.verb) == "deleted" for event in await watching.events())
            assert server.lists == 3
            assert counted("unreadable") - before == 2 * len(lost)
            # Repaired: the next event is received, and a list repairs the rest.
            del server.items[1:]
            server.version = "100010"
            server.say(b"garbage")
            await eventually(lambda: watching.is_state("watching"), SOON)
            assert len(await own.ends()) == 2


async def test_w16_no_line_of_a_watch_stops_it_and_what_one_lost_is_listed_again(
    own: Rig, tmp_path: Path
):
    hostile = corpus("w", 200_000)
    lines = [watch_line(each.body) for each in hostile if each.is_framed]
    async with (
        HostileServer([document("sound", "50")]).serve() as server,
        Watching(own, server) as watching,
    ):
        await eventually(own.ends, SOON)
        server.version = "400000"
        server.items += [each.body for each in hostile if each.fate is not Fate.LOST]
        server.say(BOOKMARK.replace(b"VERSION", b"150000"), *lines, *NO_EVENTS.values(), b"", b"\r")
        await eventually(lambda: watching.receives(server, "last", "399999"), SOON)
        await eventually(lambda: _has_ends(own, 2), SOON)
        await eventually(lambda: watching.is_state("watching"), SOON)
        published = {event.name: event for event in await watching.events()}
    assert server.lists >= 2
    for number, each in enumerate(hostile):
        event = published.get(f"w-{number}")
        if each.title != "every legal byte":
            assert (event is not None) == (each.fate is not Fate.LOST), each.title
        if event is not None:
            assert (event.object is not None) == (each.fate is Fate.WHOLE), each.title
    assert CANARY not in stored(tmp_path)


async def _has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


@each_row("is_custom", [False, True])
@each_row("limit", [0, 500])
async def test_w2_w16_a_list_with_a_broken_item_is_read_whichever_way_it_is_written(
    limit: int, is_custom: bool
):
    items = [document("a", "1"), document("b", "2", data=b'"\\ud800"'), document("c", "3")]
    server = HostileServer(items)
    server.is_custom = is_custom
    async with server.serve(), KubeClient(server.config) as client:
        pages = [page async for page in list_pages(client, TARGET, limit=limit)]
        assert [bytes(item) for page in pages for item in page.items] == items
        assert {_head(page) for page in pages} == {("v1", "ConfigMap", "100000")}
        server.items = [items[0][:-1], items[1]]
        with pytest.raises(KubeError, match=r"not a (complete )?list"):
            [page async for page in list_pages(client, TARGET, limit=limit)]


def _head(page: ListPage) -> tuple[str, str, str]:
    return (page.api_version, page.kind, page.resource_version)
