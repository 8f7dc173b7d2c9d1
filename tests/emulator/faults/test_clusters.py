"""Faults of a whole cluster: partitions, another cluster behind the address; its ground truth."""

from __future__ import annotations

import asyncio
import io
import resource
import ssl
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import aiohttp
import pytest
from yarl import URL

from emulator.support.fault_rig import SILENCE, is_silent, read_line, read_rest
from emulator.support.kube_calls import CONFIGMAPS, Calls, config_map
from fleetbus_emulator.apiserver import Abort, Cluster, CutWatch, Drip, Partition, serve
from fleetbus_emulator.apiserver.storage.ground_truth import (
    Forgotten,
    GroundTruth,
    commit_from_json,
)
from support.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from emulator.support.fault_rig import FaultRig
    from fleetbus_emulator.apiserver import Commit

PIECE = 64  # bytes of an answer that drips


async def test_a_cluster_that_hangs_is_silent_both_ways_and_goes_on_when_it_heals(
    faulty: FaultRig,
):
    async with faulty.watch() as stream:
        await faulty.servers.partition("alpha", Partition.HANG)
        faulty.add("a")
        posting = asyncio.ensure_future(faulty.post("b"))
        assert await is_silent(stream)
        assert not posting.done()
        assert not faulty.has("b")
        assert faulty.servers.partition_of("alpha") is Partition.HANG
        await faulty.servers.heal("alpha")
        assert await posting == 201
        assert [(await read_line(stream)).name for _ in range(2)] == ["a", "b"]
    assert faulty.servers.partition_of("alpha") is None


async def test_lost_answers_leave_the_write_committed_and_the_client_in_doubt(faulty: FaultRig):
    async with faulty.watch() as stream:
        await faulty.servers.partition("alpha", Partition.LOSE_ANSWERS)
        posting = asyncio.ensure_future(faulty.post("a"))
        await eventually(lambda: faulty.has("a"))
        assert await is_silent(stream)
        assert not posting.done()
        await faulty.servers.heal("alpha")
        assert (await posting, (await read_line(stream)).name) == (201, "a")


async def test_lost_requests_leave_open_watches_alone(faulty: FaultRig):
    async with faulty.watch() as stream:
        await faulty.servers.partition("alpha", Partition.LOSE_REQUESTS)
        posting = asyncio.ensure_future(faulty.post("a"))
        faulty.add("b")
        assert (await read_line(stream)).name == "b"
        await asyncio.wait([posting], timeout=SILENCE)
        assert not posting.done()
        assert not faulty.has("a")
        await faulty.servers.heal("alpha")
        assert await posting == 201


async def test_a_refusing_cluster_breaks_connections_and_heals_on_its_port(faulty: FaultRig):
    url = faulty.url
    async with faulty.watch() as stream:
        await faulty.servers.partition("alpha", Partition.REFUSE)
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.read()
    with pytest.raises(aiohttp.ClientConnectorError):
        await faulty.names()
    assert not faulty.servers.is_listening("alpha")
    await faulty.servers.partition("alpha", Partition.LOSE_ANSWERS)
    assert faulty.servers.is_listening("alpha"), "one partition takes the place of another"
    await faulty.servers.partition("alpha", Partition.REFUSE)
    await faulty.servers.start("alpha")
    assert faulty.servers.partition_of("alpha") is None
    await faulty.servers.heal("alpha")
    assert (faulty.url, await faulty.names()) == (url, [])


async def test_nothing_of_a_broken_watch_gets_through_a_partition(faulty: FaultRig):
    async with faulty.watch() as stream:
        await faulty.servers.partition("alpha", Partition.HANG)
        faulty.faults.add(CutWatch(after_events=0, mid_line=False))
        assert await is_silent(stream), "its end is silent, too"
        await faulty.servers.heal("alpha")
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream.read()


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_the_rest_of_a_dripping_answer_does_not_get_through_a_partition(
    faulty: FaultRig, verb: str
):
    faulty.faults.add(Drip(size=PIECE, pause=timedelta(milliseconds=5)), verb=verb)
    faulty.add("a")
    query = {"watch": "1"} if verb == "watch" else {}
    async with faulty.session.get(faulty.url + CONFIGMAPS, params=query) as answer:
        begun = await answer.content.readany()
        await faulty.servers.partition("alpha", Partition.HANG)
        on_its_way = await read_for_a_while(answer.content)
        assert len(on_its_way) <= PIECE
        await faulty.servers.heal("alpha")
        received = begun + on_its_way
        while b'"name":"a"' not in received and (piece := await answer.content.readany()):
            received += piece
    assert b'"name":"a"' in received


async def read_for_a_while(stream: aiohttp.StreamReader) -> bytes:
    received = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(SILENCE):
            while piece := await stream.readany():
                received += piece
    return received


@pytest.mark.parametrize("verb", ["create", "list"])
async def test_an_aborted_connection_does_not_end_within_a_partition(faulty: FaultRig, verb: str):
    await faulty.servers.partition("alpha", Partition.LOSE_ANSWERS)
    faulty.faults.add(Abort(after_commit=verb == "create"), verb=verb)
    asking = asyncio.ensure_future(faulty.post("a") if verb == "create" else faulty.names())
    await asyncio.wait([asking], timeout=SILENCE)
    assert not asking.done()
    await faulty.servers.heal("alpha")
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await asking


async def test_a_refused_body_is_not_answered_within_a_partition(faulty: FaultRig):
    await faulty.servers.partition("alpha", Partition.LOSE_ANSWERS)
    body = io.BytesIO(bytes(4 * 1024 * 1024))
    posting = asyncio.ensure_future(faulty.session.post(faulty.url + CONFIGMAPS, data=body))
    await asyncio.wait([posting], timeout=SILENCE)
    assert not posting.done()
    await faulty.servers.heal("alpha")
    async with await posting as answer:
        assert answer.status == 413


async def test_what_hangs_ends_when_its_server_stops(faulty: FaultRig):
    await faulty.servers.partition("alpha", Partition.HANG)
    hanging = asyncio.ensure_future(faulty.names())
    await asyncio.wait([hanging], timeout=SILENCE)
    began = time.monotonic()
    await faulty.servers.stop("alpha")
    assert time.monotonic() - began < 5
    with pytest.raises(aiohttp.ClientError):
        await hanging


async def test_a_server_that_stopped_serves_nobody_whose_handshake_it_had_begun():
    async with serve([Cluster("alpha")], tls=True) as servers:
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(servers.url("alpha")).port)
        await asyncio.sleep(0)  # the server accepts it
        await servers.stop("alpha")
        with pytest.raises((OSError, EOFError)):
            await ask_for_life(reader, writer)
        writer.close()


async def ask_for_life(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    await writer.start_tls(context)
    writer.write(b"GET /livez HTTP/1.1\r\nHost: alpha\r\n\r\n")
    await reader.readuntil(b"ok")


async def test_another_cluster_behind_the_address_knows_nothing_of_its_watchers(faulty: FaultRig):
    rv = str(faulty.cluster.resource_version)
    first = faulty.cluster.uid
    async with faulty.watch(resourceVersion=rv) as stream:
        assert faulty.cluster.swap_uid("other") == "other"
        assert await read_rest(stream) == []
    _, namespace = await faulty.get("/api/v1/namespaces/kube-system")
    assert (namespace["metadata"]["uid"], faulty.cluster.uid) == ("other", "other")
    async with faulty.watch(resourceVersion=rv) as stream:
        assert (await stream.readline()).startswith(b'{"type":"ERROR"')
    assert faulty.cluster.swap_uid() not in ("other", first)


# the ground truth -------------------------------------------------------------------------------


def test_the_ground_truth_tells_what_was_written_from_where_to_where_and_by_whom():
    calls = Calls(Cluster("alpha"))
    since = calls.cluster.truth.last
    calls.post(CONFIGMAPS, config_map("a"), agent="kubectl/v1.31")
    calls.post(CONFIGMAPS, config_map("a"))
    calls.cluster.patch("v1/configmaps", "default", "a", {"data": {"k": "v"}})
    calls.cluster.delete("v1/configmaps", "default", "a")

    added, modified, deleted = calls.cluster.truth.after(since)
    assert [added.type, modified.type, deleted.type] == ["ADDED", "MODIFIED", "DELETED"]
    assert [added.number, deleted.number] == [since + 1, since + 3]
    assert (added.before, modified.before, deleted.before) == (None, added.rv, modified.rv)
    assert (added.agent, modified.agent) == ("kubectl/v1.31", "")
    assert (deleted.resource, deleted.namespace, deleted.name) == ("configmaps", "default", "a")
    assert deleted.uid == added.uid
    assert commit_from_json(added.to_json()) == added


def test_the_ground_truth_tells_of_a_restored_backup():
    cluster = Cluster("alpha")
    past = cluster.resource_version
    cluster.create("v1/configmaps", config_map("a"), "default")
    late = cluster.resource_version
    cluster.roll_back(past)
    assert (cluster.history[-1].type, cluster.history[-1].rv) == ("ROLLED_BACK", past)
    assert cluster.history[-1].before == late
    cluster.create("v1/configmaps", config_map("b"), "default")
    assert cluster.history[-1].rv == late


def numbers(commits: list[Commit]) -> list[int]:
    return [commit.number for commit in commits]


def test_the_ground_truth_has_a_cursor_and_says_what_it_forgot():
    cluster = Cluster("alpha", history_capacity=10)
    for number in range(20):
        cluster.create("v1/configmaps", config_map(f"a{number}"), "default")
    truth = cluster.truth
    last = truth.last
    assert numbers(truth.after(last - 10)) == list(range(last - 9, last + 1))
    assert numbers(truth.after(last - 10, limit=3)) == [last - 9, last - 8, last - 7]
    assert numbers(truth.after(last - 2)) == [last - 1, last]
    assert truth.after(last) == truth.after(last + 5) == []
    with pytest.raises(Forgotten) as forgotten:
        truth.after(last - 11)
    assert forgotten.value.oldest == last - 9


def test_a_recorded_ground_truth_forgets_nothing(tmp_path: Path):
    cluster = Cluster("alpha", history_capacity=10)
    path = tmp_path / "truth.jsonl"
    with cluster.truth.recording(path):
        for number in range(1_200):
            cluster.create("v1/configmaps", {"metadata": {"name": f"a{number}"}}, "default")
        last = cluster.truth.last
        assert numbers(cluster.truth.after(0, limit=3)) == [1, 2, 3]
        for cursor in (999, 1_000, 1_001, 1_100):
            assert numbers(cluster.truth.after(cursor, limit=2)) == [cursor + 1, cursor + 2]
        assert numbers(cluster.truth.after(0, limit=5_000)) == list(range(1, last + 1))
        with pytest.raises(RuntimeError, match="already"), cluster.truth.recording(path):
            pass
    written = [commit_from_json(line) for line in path.read_bytes().splitlines()]
    assert numbers(written) == list(range(1, last + 1))
    with pytest.raises(Forgotten):
        cluster.truth.after(0)


def test_a_full_disk_ends_the_record_and_not_the_writes(tmp_path: Path):
    cluster = Cluster("alpha")
    first = cluster.truth.last
    path = tmp_path / "truth.jsonl"
    names: list[str] = []
    cluster.subscribe(lambda change: names.append(change.new["metadata"]["name"]))
    with cluster.truth.recording(path):
        cluster.create("v1/configmaps", config_map("a"), "default")
        written = path.read_bytes()
        with full_disk(len(written) + 10):
            cluster.create("v1/configmaps", config_map("b"), "default")
        cluster.create("v1/configmaps", config_map("c"), "default")
        assert f"truth.jsonl ends before number {first + 2}: " in cluster.truth.record_problem
    assert names == ["a", "b", "c"]
    assert numbers(cluster.truth.after(first)) == [first + 1, first + 2, first + 3]
    assert path.read_bytes() == written, "no part of a line, and nothing behind the gap"
    with cluster.truth.recording(path):
        assert cluster.truth.record_problem == ""


@contextmanager
def full_disk(size: int) -> Generator[None]:
    """No file may become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("line", ["{}", "[]", '{"number": 1}', "nonsense"])
def test_a_line_that_is_no_entry_is_refused(line: str):
    with pytest.raises(ValueError):  # noqa: PT011 - JSON errors are ValueErrors of their own
        commit_from_json(line)


def test_listeners_are_notified_of_each_entry_once():
    truth = GroundTruth(5)
    received: list[int] = []
    listener = lambda: received.append(truth.last)  # noqa: E731
    truth.listeners.add(listener)
    cluster = Cluster("alpha")
    for commit in list(cluster.history)[:2]:
        truth.append(commit)
    truth.listeners.discard(listener)
    truth.append(list(cluster.history)[2])
    assert received == [1, 2]
