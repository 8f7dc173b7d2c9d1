"""Commands that are wanted at one time go out in one write, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from fleetbus.store import pipelining
from fleetbus.store.pipelining import PipeliningRedis


@pytest.fixture
async def client(valkey_url: str) -> AsyncGenerator[Redis]:
    made = PipeliningRedis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    yield made
    await made.aclose()


async def reads_of_the_server(client: Redis) -> int:
    return int((await client.info("stats"))["total_reads_processed"])


async def test_commands_of_one_turn_are_one_write_in_the_order_of_their_calls(
    client: Redis,
):
    before = await reads_of_the_server(client)
    answers = await asyncio.gather(
        client.set("a", "1"), client.incr("a"), client.get("a"), client.get("b")
    )
    assert answers == [True, 2, b"2", None]
    assert await reads_of_the_server(client) == before + 2  # the write, and the next question


async def test_one_that_is_refused_fails_alone(client: Redis):
    good, bad, other = await asyncio.gather(
        client.set("a", "x"), client.incr("a"), client.get("a"), return_exceptions=True
    )
    assert (good, other) == (True, b"x")
    assert isinstance(bad, ResponseError)
    assert "not an integer" in str(bad)


async def test_a_script_that_the_server_does_not_know_is_loaded_for_each_who_runs_it(
    client: Redis,
):
    script = client.register_script("return ARGV[1]")
    answers = await asyncio.gather(*(script(args=[number]) for number in range(5)))
    assert answers == [b"0", b"1", b"2", b"3", b"4"]


async def test_commands_beyond_a_batch_are_sent_with_the_next_one(
    client: Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipelining, "MAX_BATCH", 3)
    answers = await asyncio.gather(*(client.incr("n") for _ in range(10)))
    assert answers == list(range(1, 11))


async def test_who_wants_little_does_not_wait_for_the_long_commands(
    client: Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pipelining, "MAX_BATCH", 1)  # in one batch they would all come before it
    wait_a_moment = "local n = 0; while n < 3e6 do n = n + 1 end; return #ARGV"
    many = [str(number) for number in range(pipelining.LONG)]
    run = cast("Any", client).eval
    long = [asyncio.ensure_future(run(wait_a_moment, 0, *many)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await client.set("a", "1")
    assert not all(one.done() for one in long)
    assert await asyncio.gather(*long) == [pipelining.LONG] * 5


async def test_who_is_stopped_takes_nobody_with_it(client: Redis):
    tasks = [asyncio.ensure_future(client.incr("n")) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, False]
    assert await client.get("n") == b"3"


async def test_when_the_store_is_away_each_caller_gets_an_error_of_its_own():
    client = PipeliningRedis(port=1, retry=Retry(NoBackoff(), 0))
    errors = await asyncio.gather(*(client.get("a") for _ in range(3)), return_exceptions=True)
    await client.aclose()
    assert all(isinstance(one, RedisError) for one in errors)
    assert len({id(one) for one in errors}) == 3


async def test_closing_does_not_wait_for_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pipelining, "_PATIENCE", timedelta(milliseconds=50))

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = PipeliningRedis(port=port, retry=Retry(NoBackoff(), 0))
    asked = asyncio.ensure_future(client.get("a"))
    await asyncio.sleep(0.02)
    await asyncio.wait_for(client.aclose(), timeout=5)
    server.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
