"""Commands that are wanted at one time go out in one write, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
import redis.exceptions as errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleetbus.store import multiplexing, shared_connection
from fleetbus.store.multiplexing import MultiplexingRedis


@pytest.fixture
async def client(valkey_url: str) -> AsyncGenerator[Redis]:
    made = MultiplexingRedis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    yield made
    await made.aclose()


async def reads_of_the_server(client: Redis) -> int:
    return int((await client.info("stats"))["total_reads_processed"])


async def test_commands_of_one_turn_are_one_write_in_the_order_of_their_calls(
    client: Redis,
):
    before = await reads_of_the_server(client)
    for number in range(2):
        key = f"a{number}"
        answers = await asyncio.gather(
            client.set(key, "1"), client.incr(key), client.get(key), client.get("b")
        )
        assert answers == [True, 2, b"2", None]
    # Behind one that came alone the first one goes at once: two writes. Then one, and the question.
    assert await reads_of_the_server(client) == before + 4


async def test_one_that_is_refused_fails_alone(client: Redis):
    good, bad, other = await asyncio.gather(
        client.set("a", "x"), client.incr("a"), client.get("a"), return_exceptions=True
    )
    assert (good, other) == (True, b"x")
    assert isinstance(bad, errors.ResponseError)
    assert "not an integer" in str(bad)


async def test_a_script_that_the_server_does_not_know_is_loaded_for_each_who_runs_it(
    client: Redis,
):
    script = client.register_script("return ARGV[1]")
    answers = await asyncio.gather(*(script(args=[number]) for number in range(5)))
    assert answers == [b"0", b"1", b"2", b"3", b"4"]


async def test_commands_above_the_batch_limit_go_out_in_the_next_write(
    client: Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_connection, "MAX_BATCH", 3)
    answers = await asyncio.gather(*(client.incr("n") for _ in range(10)))
    assert answers == list(range(1, 11))


async def test_who_wants_little_does_not_wait_for_the_long_commands(
    client: Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        shared_connection, "MAX_BATCH", 1
    )  # in one batch they would all come before it
    wait_a_moment = "local n = 0; while n < 3e6 do n = n + 1 end; return #ARGV"
    many = [str(number) for number in range(multiplexing.LONG)]
    run = cast("Any", client).eval
    long = [asyncio.ensure_future(run(wait_a_moment, 0, *many)) for _ in range(5)]
    await asyncio.sleep(0)
    assert await client.set("a", "1")
    assert not all(one.done() for one in long)
    assert await asyncio.gather(*long) == [multiplexing.LONG] * 5


async def test_who_is_stopped_takes_nobody_with_it(client: Redis):
    tasks = [asyncio.ensure_future(client.incr("n")) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, False]
    assert await client.get("n") == b"3"


async def test_when_the_store_is_away_each_call_fails():
    client = MultiplexingRedis(port=1, retry=Retry(NoBackoff(), 0))
    found = await asyncio.gather(*(client.get("a") for _ in range(3)), return_exceptions=True)
    await client.aclose()
    assert all(isinstance(one, errors.RedisError) for one in found)
    assert len({id(one) for one in found}) == 3


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served_by(serve: Serve, *, answer_within: float = 5) -> AsyncGenerator[MultiplexingRedis]:
    """A client of a server that answers as `serve` says once the client has introduced itself."""

    async def introduced(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (line := await reader.readline()).startswith(b"*"):
                words = [await _word(reader) for _ in range(int(line[1:]))]
                if words[:2] == [b"CLIENT", b"SETINFO"]:
                    writer.write(b"+OK\r\n")
                    continue
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(introduced, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options: dict[str, Any] = {"socket_timeout": answer_within, "retry": Retry(NoBackoff(), 0)}
    client = MultiplexingRedis(port=port, protocol=2, **options)
    try:
        yield client
    finally:
        await asyncio.wait_for(client.aclose(), timeout=5)
        server.close()


async def _word(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readline())[1:])
    return (await reader.readexactly(size + 2))[:-2]


async def test_closing_does_not_wait_for_a_server_that_hangs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_connection, "PATIENCE", timedelta(milliseconds=50))

    arrived = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()

    async with served_by(say_nothing) as client:
        asked = asyncio.ensure_future(client.get("a"))
        await arrived.wait()
    with pytest.raises(errors.ConnectionError, match="the client is closed"):
        await asked


async def test_q11_a_connection_that_ends_fails_what_was_sent_and_nothing_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(shared_connection, "MAX_BATCH", 2)
    seen = 0

    async def answer_the_third(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            writer.close()
        else:
            writer.write(b":3\r\n")

    async with served_by(answer_the_third) as client:
        sent, also_sent, waiting = await asyncio.gather(
            *(client.incr("n") for _ in range(3)), return_exceptions=True
        )
    assert isinstance(sent, errors.ConnectionError)
    assert isinstance(also_sent, errors.ConnectionError)
    assert sent is not also_sent
    assert waiting == 3, "what was not sent yet goes over the next connection"


async def test_a_server_that_never_answers_is_given_up_when_its_client_says():
    seen = 0

    async def answer_the_second(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            writer.write(b":2\r\n")

    async with served_by(answer_the_second, answer_within=0.05) as client:
        with pytest.raises(errors.TimeoutError, match="no answer within 0"):
            await client.incr("n")
        assert await client.incr("n") == 2


async def test_slow_answers_are_waited_for_as_long_as_some_come():
    async def answer_slowly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.12)  # a slow answer
        writer.write(b":1\r\n")

    async with served_by(answer_slowly, answer_within=0.4) as client:
        assert await asyncio.gather(*(client.incr("n") for _ in range(5))) == [1] * 5


async def test_after_a_failover_the_next_command_goes_over_another_connection():
    connections: list[asyncio.StreamWriter] = []

    async def demoted_at_first(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer not in connections:
            connections.append(writer)
        is_first = len(connections) == 1
        writer.write(b"-READONLY You can't write against a replica\r\n" if is_first else b":1\r\n")

    async with served_by(demoted_at_first) as client:
        refused = await asyncio.gather(
            *(client.incr("n") for _ in range(3)), return_exceptions=True
        )
        assert all(isinstance(one, errors.ReadOnlyError) for one in refused), refused
        assert await client.incr("n") == 1
    assert len(connections) == 2


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b":1\r\n:2\r\n"])
async def test_what_is_no_reply_ends_the_connection_and_answers_nobody_else(garbage: bytes):
    seen = 0

    async def babble_at_first(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.write(garbage if seen == 1 else b":7\r\n")

    async with served_by(babble_at_first) as client:
        await asyncio.gather(client.incr("n"), return_exceptions=True)
        await asyncio.sleep(0.05)  # the rest of it arrives
        assert await client.incr("n") == 7


async def test_a_push_of_the_server_is_nobodys_answer():
    async def push_first(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b">2\r\n+invalidate\r\n+a\r\n:1\r\n")

    async with served_by(push_first) as client:
        assert await client.incr("n") == 1


async def test_an_argument_that_cannot_be_sent_is_refused_and_nothing_is_sent(client: Redis):
    with pytest.raises(errors.DataError):
        await client.execute_command("SET", "a", cast("Any", object()))
    assert await client.get("a") is None


async def test_no_connection_is_left_open_behind_a_closed_client(valkey_url: str):
    client = MultiplexingRedis.from_url(valkey_url, retry=Retry(NoBackoff(), 0))
    other = Redis.from_url(valkey_url)
    await client.set("a", "1")
    before = len(await other.client_list())
    await client.aclose()
    assert len(await other.client_list()) == before - 1
    await other.aclose()
