"""A replica of the bucket that lags behind answers, and is asked again (rule B19).

The server is played, because a real one lags only by chance, under load.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.recent_revisions import RecentRevisions
from support.eventually import eventually

BUCKET = "LAGGING"


class LaggingBucket:
    """One key of a bucket: a write is acknowledged at once, and read a few times later."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.revision = 0
        self.lag = 0
        self.reads = 0

    async def start(self) -> None:
        await self._client.subscribe(f"$KV.{BUCKET}.a.b", cb=self._write)
        await self._client.subscribe(f"$JS.API.DIRECT.GET.KV_{BUCKET}.>", cb=self._read)
        await self._client.flush()

    async def _write(self, message: Msg) -> None:
        expected = (message.headers or {}).get("Nats-Expected-Last-Subject-Sequence")
        if expected not in (None, str(self.revision)):
            text = f"wrong last sequence: {self.revision}"
            error = {"code": 400, "err_code": 10071, "description": text}
            await message.respond(json.dumps({"error": error}).encode())
            return
        self.revision += 1
        self.reads = 0
        await message.respond(json.dumps({"stream": BUCKET, "seq": self.revision}).encode())

    async def _read(self, message: Msg) -> None:
        self.reads += 1
        number = self.revision if self.reads > self.lag else self.revision - 1
        head = {"Nats-Sequence": str(number)} if number else {"Status": "404"}
        await self._client.publish(message.reply, str(number).encode(), headers=head)


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        yield client


@pytest.fixture
async def bucket(nats: Client) -> LaggingBucket:
    lagging = LaggingBucket(nats)
    await lagging.start()
    return lagging


class Clock:
    """Clock of the process that reads, which a busy machine must not set forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def key_value(bus: Bus, clock: Clock) -> KeyValue:
    recent = KeyValue(bus, BUCKET)
    recent.seen = RecentRevisions(clock=clock)
    return recent


async def read(kv: KeyValue) -> int:
    entry = await kv.get("a.b")
    return entry.revision if entry is not None else 0


async def test_b19_a_read_finds_what_the_process_has_written(bus: Bus, bucket: LaggingBucket):
    kv, bucket.lag = key_value(bus, Clock()), 3
    assert await kv.put("a.b", b"x") == 1
    assert await read(kv) == 1
    assert await kv.put("a.b", b"y") == 2
    assert await read(kv) == 2
    other = KeyValue(bus, BUCKET)
    await kv.put("a.b", b"z")
    assert await read(other) == 2  # another process may still miss it


async def test_b19_a_refused_write_is_followed_by_a_read_of_what_refused_it(
    bus: Bus, bucket: LaggingBucket
):
    kv, bucket.revision, bucket.lag = key_value(bus, Clock()), 7, 3
    assert await kv.update("a.b", b"x", 6) is None
    assert await read(kv) == 7


async def test_b19_a_bucket_that_began_again_is_believed_after_two_seconds(
    bus: Bus, bucket: LaggingBucket
):
    clock = Clock()
    kv, bucket.revision = key_value(bus, clock), 40
    assert await read(kv) == 40
    bucket.revision, bucket.reads = 3, 0
    reading = asyncio.create_task(read(kv))
    clock.now = 1.9
    await eventually(lambda: bucket.reads > 3)
    assert not reading.done()
    clock.now = 2.1
    assert await reading == 3
    bucket.revision = 1
    assert await kv.put("a.b", b"x") == 2
    async with asyncio.timeout(10):  # what the leader says is believed at once: the clock stands
        assert await read(kv) == 2


def test_a_key_that_is_missing_among_all_may_have_been_deleted():
    now = 0.0
    revisions = RecentRevisions(clock=lambda: now)
    revisions.note("pool.a", 5)
    revisions.note("pool.b", 6, may_be_deleted=True)
    revisions.note("other.c", 9)
    assert not revisions.is_any_outdated("pool", {"pool.a": 5})
    assert revisions.is_any_outdated("pool", {"pool.b": 6})  # a is missing
    assert revisions.is_any_outdated("pool", {"pool.a": 5, "pool.b": 4})
    assert revisions.is_outdated("pool.a", 4)
    now = 3.0
    assert not revisions.is_any_outdated("pool", {})
    assert not revisions.is_outdated("pool.a", 0)
