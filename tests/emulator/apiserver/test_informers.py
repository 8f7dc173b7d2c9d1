"""Random histories: whatever is written, every informer's cache equals the truth at its revision.

Most seeds run within the process, a few over HTTP. FLEETBUS_TEST_SEEDS says how many; a failure
names its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any

import aiohttp
import orjson
import pytest

from emulator.support.api_reflector import Reflector, Watched
from emulator.support.api_truth import Scope, Truth, key_of
from emulator.support.api_writers import KINDS, NAMESPACES, Sent, Writers
from emulator.support.kube_calls import CONFIGMAPS, CRDS, Calls, config_map, widget_definition
from fleetbus_emulator.apiserver import Cluster, Request, Response, Watch, serve
from support.eventually import eventually

JsonObject = dict[str, Any]
SEEDS = int(os.environ.get("FLEETBUS_TEST_SEEDS", "160"))
SEEDS_OVER_HTTP = max(3, SEEDS // 60)
CHUNK = 40
ALLOWED = {200, 201, 400, 404, 409, 415, 422}


LABEL_SELECTORS: dict[str, Callable[[dict[str, str]], bool]] = {
    "": lambda _: True,
    "l=x": lambda labels: labels.get("l") == "x",
    "l!=x": lambda labels: labels.get("l") != "x",
    "l in (x,y)": lambda labels: labels.get("l") in ("x", "y"),
    "!l": lambda labels: "l" not in labels,
    "l": lambda labels: "l" in labels,
}


def _watched(random: Random) -> Watched:
    kind = random.choice(KINDS)
    namespace = random.choice((None, *NAMESPACES))
    labels = random.choice(("", *LABEL_SELECTORS))
    fits = LABEL_SELECTORS[labels]
    selectors: dict[str, str] = {}
    name = random.choice(("", "", "", "a", "d.e"))
    if labels:
        selectors["labelSelector"] = labels
    if name:
        selectors["fieldSelector"] = f"metadata.name={name}"

    def matches(obj: JsonObject) -> bool:
        return fits(obj["metadata"].get("labels") or {}) and name in ("", key_of(obj)[1])

    scope = Scope("example.com" if kind.custom else "", kind.plural, namespace, matches)
    return Watched(kind.collection(namespace), kind.api_version, kind.kind, selectors, scope)


class _World:
    """A cluster with widgets, writers, and the truth about it."""

    def __init__(self, seed: int, bookmark_interval: timedelta = timedelta(0)) -> None:
        self.random = Random(seed)
        capacity = self.random.choice((4, 30, 4_000))
        self.cluster = Cluster(
            "alpha", seed=seed, event_capacity=capacity, bookmark_interval=bookmark_interval
        )
        Calls(self.cluster).post(CRDS, widget_definition("v1beta1"))
        self.truth = Truth(self.cluster)
        self.writers = Writers(self.random)

    def reflector(self) -> Reflector:
        bookmarks = self.random.random() < 0.5
        return Reflector(_watched(self.random), self.truth, self.random, bookmarks=bookmarks)

    def compact(self) -> None:
        behind = self.random.choice((0, 0, 3))
        watches = self.random.random() < 0.7
        self.cluster.compact(self.cluster.resource_version - behind, watches=watches)

    def check_answer(self, sent: Sent, status: int, document: JsonObject, before: int) -> None:
        """A refused write and a dry run change nothing; an answered object is the stored one."""
        moved = self.cluster.resource_version - before
        assert status in ALLOWED, document
        if status >= 400 or "dryRun" in sent.query:
            assert moved == 0, (sent, document)
        elif document["kind"] in ("ConfigMap", "Widget"):
            assert moved <= 1
            self.writers.note(sent, document)
            if moved:
                assert document["metadata"]["resourceVersion"] == str(before + 1)


# within the process -----------------------------------------------------------------------------


class _Connection:
    """A reflector and the watch that it has open."""

    def __init__(self, world: _World) -> None:
        self._cluster = world.cluster
        self.reflector = world.reflector()
        self._watch: Watch | None = None

    def disconnect(self) -> None:
        if self._watch is not None:
            self._cluster.release(self._watch)
            self._watch = None

    async def turn(self) -> bool:
        """Ask for a page, or read what there is; whether it was a page or something was there."""
        reflector = self.reflector
        if self._watch is None:
            request = Request("GET", reflector.watched.path, reflector.query())
            answer = self._cluster.handle(request)
            if isinstance(answer, Response):
                reflector.take_page(answer.status, orjson.loads(answer.body))
                return True
            self._watch = answer
            await _arm(answer)
        lines = self._watch.read().splitlines()
        relists, changed = reflector.relists, False
        for line in lines:
            event = orjson.loads(line)
            changed = changed or event["type"] != "BOOKMARK"
            reflector.take_event(event)
        if self._watch.ended or reflector.relists > relists:
            self.disconnect()
            return True
        return changed


async def _arm(watch: Watch) -> None:
    """Let the watch start its timers; bookmarks are then due at every turn."""
    waiting = asyncio.ensure_future(watch.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


def _write(world: _World) -> None:
    sent, before = world.writers.write(), world.cluster.resource_version
    request = Request(sent.method, sent.path, sent.query, {"content-type": sent.content}, sent.body)
    answer = world.cluster.handle(request)
    assert isinstance(answer, Response)
    world.check_answer(sent, answer.status, orjson.loads(answer.body), before)


async def _run(seed: int) -> tuple[int, int]:
    """One history; how often informers listed again and saw bookmarks."""
    world = _World(seed)
    connections = [_Connection(world) for _ in range(3)]
    for _ in range(world.random.choice((20, 40, 80))):
        _write(world)
        choice = world.random.random()
        connection = world.random.choice(connections)
        if choice < 0.75:
            await connection.turn()
        elif choice < 0.9:
            connection.disconnect()
        elif choice < 0.93:
            connection.disconnect()
            connection.reflector.lose()
        else:
            world.compact()
    for connection in connections:
        while await connection.turn():
            pass
        scope = connection.reflector.watched.scope
        assert connection.reflector.cache == world.truth.at(scope, world.cluster.resource_version)
        connection.disconnect()
    return (
        sum(connection.reflector.relists for connection in connections),
        sum(connection.reflector.bookmarks for connection in connections),
    )


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
async def test_every_informer_equals_the_store_at_its_revision(first: int):
    relists = bookmarks = 0
    seeds = range(first, min(first + CHUNK, SEEDS))
    for seed in seeds:
        try:
            counts = await _run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        relists, bookmarks = relists + counts[0], bookmarks + counts[1]
    assert relists > len(seeds) // 4, "hardly any informer was ever left behind"
    assert bookmarks > len(seeds)


# over HTTP --------------------------------------------------------------------------------------


class _Client:
    """A reflector that talks HTTP, and whose connection breaks now and then."""

    def __init__(self, world: _World, session: aiohttp.ClientSession, url: str) -> None:
        self.reflector = world.reflector()
        self._random = Random(world.random.random())
        self._session = session
        self._url = url

    async def run(self) -> None:
        while True:
            query, url = self.reflector.query(), self._url + self.reflector.watched.path
            if self.reflector.is_listing:
                async with self._session.get(url, params=query) as answer:
                    self.reflector.take_page(answer.status, await answer.json())
            else:
                with contextlib.suppress(TimeoutError, aiohttp.ClientPayloadError):
                    async with asyncio.timeout(self._random.uniform(0.01, 0.1)):
                        await self._follow(url, query)

    async def _follow(self, url: str, query: dict[str, str]) -> None:
        async with self._session.get(url, params=query) as answer:
            relists = self.reflector.relists
            async for line in answer.content:
                self.reflector.take_event(orjson.loads(line))
                if self.reflector.relists > relists:
                    return


async def _write_over_http(world: _World, session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(25):
        sent = world.writers.write()
        async with session.request(
            sent.method,
            url + sent.path,
            params=sent.query,
            data=sent.body,
            headers={"Content-Type": sent.content},
        ) as answer:
            document = await answer.json()
            assert answer.status in ALLOWED, document
        if answer.status < 300 and document["kind"] in ("ConfigMap", "Widget"):
            world.writers.note(sent, document)
        if world.random.random() < 0.03:
            world.compact()


async def _settle(world: _World, clients: list[_Client]) -> None:
    """Wait until every cache is that of the last revision."""
    rv = world.cluster.resource_version
    for client in clients:
        expected = world.truth.at(client.reflector.watched.scope, rv)
        await eventually(lambda c=client, w=expected: c.reflector.cache == w)


@pytest.mark.parametrize("seed", range(SEEDS_OVER_HTTP))
async def test_every_informer_over_http_ends_with_what_the_store_has(seed: int):
    world = _World(seed, timedelta(milliseconds=10))
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        serve([world.cluster]) as servers,
        aiohttp.ClientSession(connector=connector) as session,
        asyncio.TaskGroup() as group,
    ):
        url = servers.url("alpha")
        clients = [_Client(world, session, url) for _ in range(6)]
        following = [group.create_task(client.run()) for client in clients]
        async with asyncio.TaskGroup() as writing:
            for _ in range(3):
                writing.create_task(_write_over_http(world, session, url))
        await _settle(world, clients)
        for task in following:
            task.cancel()


async def test_a_hundred_watchers_each_see_every_event():
    calls = Calls(Cluster("alpha"))
    watches = [calls.watch(CONFIGMAPS) for _ in range(100)]

    async def seen(watch: Watch) -> int:
        count = 0
        while count < 50:
            count += len(watch.read().splitlines())
            if count < 50:
                await watch.wait()
        return count

    async def write() -> None:
        for number in range(50):
            calls.post(CONFIGMAPS, config_map(f"c{number}"))
            await asyncio.sleep(0)

    async with asyncio.timeout(10):
        counts, _ = await asyncio.gather(asyncio.gather(*map(seen, watches)), write())
    assert counts == [50] * 100
