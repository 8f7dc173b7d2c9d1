"""Pipelines share their client's connection, and a transaction is one piece on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleetbus.store import shared_connection
from fleetbus.store.foreign_keys import ForeignKeyError
from fleetbus.store.multiplexing import MultiplexingRedis
from fleetbus_proto.keys import SnapshotKeys
from support.stores.refusing_store import refusing_store


@pytest.fixture
async def client(valkey_url: str) -> AsyncGenerator[Redis]:
    redis = MultiplexingRedis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    yield redis
    await redis.aclose()


@pytest.fixture(params=[True, False], ids=["transaction", "pipeline"])
def transaction(request: pytest.FixtureRequest) -> bool:
    return request.param


async def test_answers_are_those_of_the_methods(client: Redis, transaction: bool):
    async with client.pipeline(transaction=transaction) as pipe:
        pipe.hset("h", "a", "1")
        pipe.hgetall("h")
        pipe.get("missing")
        pipe.info("server")
        added, fields, missing, info = await pipe.execute()
    assert (added, fields, missing) == (1, {b"a": b"1"}, None)
    assert info["run_id"]
    assert await pipe.execute() == [], "it is empty again"


async def test_it_opens_no_connection_of_its_own(client: Redis, transaction: bool):
    await client.ping()
    before = (await client.info("stats"))["total_connections_received"]
    for _ in range(3):
        async with client.pipeline(transaction=transaction) as pipe:
            pipe.set("a", "1")
            await pipe.execute()
    assert (await client.info("stats"))["total_connections_received"] == before


async def test_one_that_is_refused_fails_the_call_and_says_which(client: Redis, transaction: bool):
    await client.set("text", "x")
    async with client.pipeline(transaction=transaction) as pipe:
        pipe.set("a", "1")
        pipe.incr("text")
        with pytest.raises(errors.ResponseError, match=r"Command # 2 \(INCR"):
            await pipe.execute()
        pipe.incr("text")
        pipe.get("a")
        refused, a = await pipe.execute(raise_on_error=False)
    assert isinstance(refused, errors.ResponseError)
    assert a == b"1"


async def test_a_transaction_with_an_unknown_command_is_not_executed(client: Redis):
    async with client.pipeline(transaction=True) as pipe:
        pipe.set("a", "1")
        pipe.execute_command("NOSUCH")
        with pytest.raises(errors.ResponseError, match="unknown command"):
            await pipe.execute()
    assert await client.get("a") is None


async def test_a_key_of_another_program_is_named(client: Redis, transaction: bool):
    await client.lpush(SnapshotKeys().owners(0, "u1"), "mine")
    async with client.pipeline(transaction=transaction) as pipe:
        pipe.smembers(SnapshotKeys().owners(0, "u1"))
        with pytest.raises(ForeignKeyError, match="owners:u1 is a list, not a set"):
            await pipe.execute()


async def test_transactions_of_many_tasks_do_not_mix(
    client: Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        shared_connection, "MAX_BATCH", 2
    )  # so that they are spread over many writes

    async def count_twice() -> bool:
        async with client.pipeline(transaction=True) as pipe:
            pipe.incr("n")
            pipe.incr("n")
            first, second = await pipe.execute()
        return bool(second == first + 1)

    others = [client.incr("n") for _ in range(20)]
    *in_a_row, _ = await asyncio.gather(*(count_twice() for _ in range(20)), *others)
    assert all(in_a_row[:20])


async def test_one_that_watches_keys_has_a_connection_of_its_own(client: Redis):
    async with client.pipeline(transaction=True) as pipe:
        await pipe.watch("a")
        await client.set("a", "meanwhile")
        pipe.multi()
        pipe.set("a", "late")
        with pytest.raises(errors.WatchError):
            await pipe.execute()
    assert await client.get("a") == b"meanwhile"


async def test_one_that_a_store_refuses_while_it_loads_fails_the_call(
    tmp_path: Path, transaction: bool
):
    """To redis-py this error is one of the connection, which a reply never is."""
    async with refusing_store(tmp_path / "store") as store:
        client = MultiplexingRedis.from_url(store.url)
        try:
            async with store.loading():
                pipe = client.pipeline(transaction=transaction)
                pipe.hgetall("hash")
                with pytest.raises(errors.BusyLoadingError):
                    await pipe.execute()
        finally:
            await client.aclose()
