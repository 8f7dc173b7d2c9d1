"""The connection to NATS, raw key-value access, owned streams: rules B3, B11 to B13, S3."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import traceback
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import orjson
import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from fleetbus.bus.connection import Bus, NoAnswer, NoStream, connected
from fleetbus.bus.jetstream import (
    StreamLimits,
    check_echo,
    ensure_bucket,
    ensure_stream,
    stream_info,
)
from fleetbus.bus.key_scan import scan_pages
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.refusals import Refused
from fleetbus.errors import BusError
from fleetbus_devfleet.processes.servers import nats_server
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.servers.old_nats import old_nats
from support.servers.restricted_nats import restricted_server


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        yield client


@pytest.fixture
async def kv(bus: Bus) -> KeyValue:
    await ensure_bucket(bus)
    return KeyValue(bus)


# --- streams ----------------------------------------------------------------------------------


async def test_b12_the_stream_has_every_setting_of_the_contract(bus: Bus):
    config = (await ensure_stream(bus))["config"]
    assert config["subjects"] == ["fleetbus.events.>", "fleetbus.epochs.>", "fleetbus.status.>"]
    assert config["max_age"] == 24 * 3600 * 10**9
    assert config["duplicate_window"] == 120 * 10**9
    assert config["max_msgs_per_subject"] == -1
    assert config["max_bytes"] > 0
    for switch in ("deny_purge", "deny_delete", "allow_direct", "allow_msg_ttl"):
        assert config[switch] is True
    assert (config["storage"], config["retention"], config["discard"]) == ("file", "limits", "old")


async def test_b12_a_second_start_finds_the_stream_as_it_is(bus: Bus):
    first = await ensure_stream(bus)
    assert (await ensure_stream(bus))["created"] == first["created"]


async def test_b12_a_drifted_stream_is_refused_and_nothing_is_changed(bus: Bus, nats: Client):
    await nats.jetstream().add_stream(name=STREAM, subjects=["fleetbus.events.>"])
    before = await stream_info(bus)
    with pytest.raises(BusError, match=r"field subjects is \['fleetbus.events.>'\]"):
        await ensure_stream(bus)
    after = await stream_info(bus)
    assert before is not None
    assert after is not None
    assert after["config"] == before["config"]


async def test_b12_another_limit_is_drift_too(bus: Bus):
    await ensure_stream(bus, StreamLimits(max_bytes=10**8))
    with pytest.raises(BusError, match="max_bytes is 100000000"):
        await ensure_stream(bus, StreamLimits(max_bytes=10**9))


async def test_b12_a_drifted_bucket_is_refused(bus: Bus, nats: Client):
    await nats.jetstream().create_key_value(bucket=KV_BUCKET)  # direct=False by default
    with pytest.raises(BusError, match="allow_direct"):
        await ensure_bucket(bus)


async def test_s3_a_value_has_a_limit_and_so_has_the_bucket(bus: Bus, kv: KeyValue):
    await kv.put("eu1.types", b"x" * 500_000)
    with pytest.raises(BusError, match="message size exceeds maximum allowed"):
        await kv.put("eu1.types", b"x" * 525_000)
    config = (await ensure_bucket(bus))["config"]
    assert config["max_bytes"] == 512 * 1024**2
    with pytest.raises(BusError, match="max_bytes is 536870912, and 1000000 is needed"):
        await ensure_bucket(bus, StreamLimits(bucket_bytes=10**6))


async def test_s3_one_page_of_keys_is_bounded_in_bytes(bus: Bus, kv: KeyValue):
    for number in range(9):
        await kv.put(f"eu1.grant.core.r{number}", b"x" * 400_000)
    sizes = [[len(e.value) for e in page.values()] async for page in scan_pages(bus, "*.grant")]
    assert sum(map(len, sizes)) == 9
    assert max(map(sum, sizes)) <= 1024**2 + 400_000


def test_a_field_that_the_server_dropped_is_reported_with_both_values():
    with pytest.raises(BusError, match="field allow_msg_ttl is False, and True is needed"):
        check_echo("stream X", {"name": "X", "allow_msg_ttl": True}, {"name": "X"})
    check_echo("stream X", {"name": "X", "max_age": 0, "no_ack": False}, {"name": "X"})


async def test_the_bucket_is_one_that_nats_clients_can_open(bus: Bus, nats: Client):
    await ensure_bucket(bus)
    await KeyValue(bus).put("eu1.incarnation", b"{}")
    bucket = await nats.jetstream().key_value(KV_BUCKET)
    assert (await bucket.get("eu1.incarnation")).value == b"{}"


# --- key-value --------------------------------------------------------------------------------


async def test_a_missing_bucket_is_an_error_not_a_missing_key(bus: Bus):
    with pytest.raises(NoStream):
        await KeyValue(bus).get("a.b")


async def test_compare_and_set_lets_only_one_writer_win(kv: KeyValue):
    first = await kv.update("a.b", b"1", 0)
    assert first is not None
    assert await kv.update("a.b", b"2", 0) is None
    second = await kv.update("a.b", b"3", first)
    assert second is not None
    assert await kv.update("a.b", b"4", first) is None
    entry = await kv.get("a.b")
    assert entry is not None
    assert (entry.value, entry.revision) == (b"3", second)


async def test_a_deleted_key_is_absent_and_can_be_created_again(kv: KeyValue):
    await kv.put("a.b", b"1")
    await kv.delete("a.b")
    assert await kv.get("a.b") is None
    assert await kv.update("a.b", b"2", 0) is not None
    assert await kv.update("a.b", b"3", 0) is None


async def test_writes_below_a_prefix_are_received(kv: KeyValue):
    received: list[tuple[str, bytes]] = []
    async with kv.follow("eu1", lambda key, value: received.append((key, value))):
        await kv.put("eu1.resync.core.pods", b"x")
        await kv.put("eu2.resync.core.pods", b"y")
        await eventually(lambda: received)
    assert received == [("eu1.resync.core.pods", b"x")]


@pytest.mark.parametrize("key", ["", "a b", "a.*", "a.>", "a%", "a\r\nPUB x 0"])
async def test_b8_a_key_that_is_none_is_refused_here(kv: KeyValue, key: str):
    with pytest.raises(BusError, match="not a key"):
        await kv.get(key)


# --- the connection ---------------------------------------------------------------------------


async def test_b13_a_server_that_is_down_is_waited_for(tmp_path: Path):
    async with nats_server(store_dir=tmp_path) as server, connected(server.url, name="t") as bus:
        await ensure_bucket(bus)
        reconnects: list[None] = []
        bus.on_reconnect(lambda: reconnects.append(None))
        server.kill()
        await eventually(lambda: not bus.is_connected)
        with pytest.raises(NoAnswer):
            await bus.request("$JS.API.INFO", within=timedelta(milliseconds=100))
        await server.restart()
        await bus.wait_connected()
        await eventually(lambda: reconnects)
        await KeyValue(bus).put("a.b", b"1")


async def test_a_server_that_is_down_is_reported_once_with_its_address(tmp_path: Path):
    async with nats_server(store_dir=tmp_path) as server:
        url = server.url
    with capture_logs() as logs, pytest.raises(TimeoutError):
        async with asyncio.timeout(0.8), connected(url, name="t"):  # there are four attempts in it
            raise AssertionError
    assert [(line["event"], line["url"]) for line in logs] == [("nats_error", url)]


async def test_b13_a_cancelled_wait_for_a_server_ends(tmp_path: Path):
    async with nats_server(store_dir=tmp_path) as server:
        url = server.url
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3), connected(url, name="t"):
            raise AssertionError


async def test_an_address_that_is_none_is_reported(nats_url: str):
    with pytest.raises(BusError, match="NATS at nats://"):
        async with connected("nats://", name="t"):
            raise AssertionError(nats_url)


async def test_no_log_line_and_no_error_holds_the_credentials(tmp_path: Path):
    async with nats_server(store_dir=tmp_path) as server:
        url = server.url.replace("nats://", "nats://admin:S3CRET@")
        with capture_logs() as logs:
            async with connected(url, name="t") as bus:
                server.kill()
                await eventually(lambda: not bus.is_connected)
                await server.restart()
                await bus.wait_connected()
    assert {"nats_disconnected", "nats_reconnected"} <= {str(line["event"]) for line in logs}
    assert "S3CRET" not in str(logs)
    no_address = "nats://u:S3CRET/x@127.0.0.1:1"  # the traceback quotes this file too
    with pytest.raises(BusError) as caught:
        async with connected(no_address, name="t"):
            raise AssertionError
    assert "S3CRET" not in "".join(traceback.format_exception(caught.value))


async def test_a_refusal_of_the_server_holds_no_credentials(tmp_path: Path):
    async with restricted_server(tmp_path) as address:
        with pytest.raises(BusError, match="refuses t") as caught:
            async with connected(f"nats://w:S3CRET@{address}", name="t"):
                raise AssertionError
        assert "S3CRET" not in str(caught.value)


async def test_b14_a_cancellation_during_the_closing_is_not_lost(nats_url: str):
    inside = asyncio.Event()

    async def use() -> None:
        async with connected(nats_url, name="t"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)  # it closes now
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.slow
async def test_b14_a_server_that_leaves_in_the_middle_of_a_reconnect_leaves_no_task():
    """nats-py forgets the pinger and the flusher of a connection that broke while it was made."""
    attempts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(len(attempts))
        await greet(reader, writer)
        writer.write(b"PONG\r\n")
        if (
            attempts[-1] == 0
        ):  # the first lives until it is subscribed to, those after it break at once
            await reader.readuntil(b"SUB ")
        if attempts[-1] < 5:
            abort(writer)
        await answer_pings(reader, writer)

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        connected(f"nats://127.0.0.1:{port_of(server)}", name="test") as bus,
    ):
        await bus.nc.subscribe("x")
        await eventually(lambda: len(attempts) > 5 and bus.is_connected)
        assert sorted(tasks_of(bus.nc)) == ["_flusher", "_ping_interval", "_read_loop"]


async def test_b14_a_reconnect_that_is_refused_leaves_no_socket():
    """nats-py forgets the socket of an attempt whose handshake failed; a leak fails the test."""
    attempts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(len(attempts))
        await greet(reader, writer)
        if attempts[-1] in range(1, 4):
            writer.write(b"-ERR 'Server Is Full'\r\n")
            await reader.read()  # until the client closes the connection
        else:
            writer.write(b"PONG\r\n")
            if attempts[-1] == 0:
                abort(writer)
        await answer_pings(reader, writer)

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        connected(f"nats://127.0.0.1:{port_of(server)}", name="test") as bus,
    ):
        await eventually(lambda: len(attempts) > 4 and bus.is_connected)
    gc.collect()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Begin as a NATS server does, and wait for the first ping of the client."""
    greeting = {"version": "2.12.0", "max_payload": 2**20, "headers": True, "server_id": "one"}
    writer.write(b"INFO " + orjson.dumps(greeting) + b"\r\n")
    await reader.readuntil(b"PING\r\n")


async def answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer until the client leaves."""
    while line := await reader.readline():
        if line == b"PING\r\n":
            writer.write(b"PONG\r\n")
    writer.close()


def abort(writer: asyncio.StreamWriter) -> None:
    """Answer with a reset, as the kernel of a killed server does."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


def tasks_of(client: Client) -> list[str]:
    """The names of the coroutines of a client that run."""
    frames = [frame for task in asyncio.all_tasks() for frame in task.get_stack(limit=1)]
    return [f.f_code.co_name for f in frames if f.f_locals.get("self") is client]


async def test_b13_wrong_credentials_fail_at_once(tmp_path: Path):
    async with restricted_server(tmp_path) as address:
        with pytest.raises(BusError, match="refuses t"):
            async with asyncio.timeout(15), connected(f"nats://w:wrong@{address}", name="t"):
                raise AssertionError


async def test_s3_the_rights_of_a_watcher_are_enough_and_end_at_its_cluster(tmp_path: Path):
    async with restricted_server(tmp_path) as address:
        async with connected(f"nats://admin:p@{address}", name="owner") as owner:
            await ensure_stream(owner)
            await ensure_bucket(owner)
        async with connected(f"nats://w:p@{address}", name="watcher.eu1") as bus:
            kv = KeyValue(bus)
            revision = await kv.update("eu1.incarnation", b"1", 0)
            assert revision is not None
            assert await kv.update("eu1.incarnation", b"2", revision) is not None
            assert await kv.get("eu1.checkpoint.core.pods.all") is None
            answer = await bus.request("fleetbus.status.eu1.r1", b"x")
            assert b'"seq"' in answer.data
            failing = asyncio.create_task(bus.failure())
            with pytest.raises(Refused):
                await bus.request("fleetbus.events.eu2.x")
            with pytest.raises(BusError, match="refuses"):
                await failing


async def test_b13_a_command_ends_at_a_server_that_is_too_old():
    async with old_nats() as address:
        with pytest.raises(BusError, match=rf"{address} runs nats-server 2.9.10, which is too old"):
            async with connected(address, name="t"):
                raise AssertionError
