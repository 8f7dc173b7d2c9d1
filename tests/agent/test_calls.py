"""Calls through an agent: sizes, credit, silence, losses; on a real NATS and an emulated server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from fleetbus import errors
from fleetbus.agent_calls.pending import Times as CallerTimes
from fleetbus.bus.connection import Bus, connected, subscribed
from fleetbus.errors import KubeError
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.response import Limits
from fleetbus.kube.connection.sessions import KUBE_SYSTEM
from fleetbus.kube.list_watch.listing import WatchTarget, list_pages
from fleetbus.kube.list_watch.reflect import WatchTimeouts, watch_events
from fleetbus.kube.requests import Call
from fleetbus_emulator.apiserver import Cluster, Hang
from fleetbus_emulator.apiserver.faults import Delay
from fleetbus_proto.calls import WINDOW_BYTES, Open, encode_frame
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import api_subject
from support.eventually import eventually, never, stays
from support.objects import config_map
from support.rigs.agents import QUICK_CALLER, AgentRig, agent_rig, one_agent

MAPS = "v1/configmaps"
TARGET = WatchTarget(parse_resource(MAPS))


def filled(count: int, size: int) -> Cluster:
    """A cluster with so many ConfigMaps of so many bytes that do not compress well."""
    cluster = Cluster("eu1")
    for number in range(count):
        text = f"{number:09d}".join(str(hash((number, at)))[:12] for at in range(size // 20))
        cluster.create(MAPS, config_map(f"m{number}") | {"data": {"k": text[:size]}}, "default")
    return cluster


# --- sizes --------------------------------------------------------------------------------------


async def test_an_object_of_a_megabyte_goes_in_both_directions(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        text = "x" * 900_000
        created = await rig.client.create(MAPS, config_map("a") | {"data": {"k": text}})
        assert created["data"]["k"] == text
        read = await rig.client.get(MAPS, "default", "a")
        assert read is not None
        assert read["data"]["k"] == text


async def test_a_request_beyond_the_limit_is_invalid_and_never_sent(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path, max_request_bytes=128 * 1024) as rig:
        with pytest.raises(errors.Invalid, match="over 131072 bytes"):
            await rig.client.create(MAPS, config_map("a") | {"data": {"k": "x" * 900_000}})
        with pytest.raises(errors.Invalid, match="too large"):
            await rig.client.create(MAPS, config_map("a") | {"data": {"k": "x" * 17_000_000}})
        assert not [request for request in rig.cluster.requests if request.verb == "create"]


async def test_a_list_is_the_same_over_both_ways_paged_and_whole(nats_url: str, tmp_path: Path):
    cluster = filled(300, 9000)
    async with one_agent(nats_url, tmp_path, cluster) as rig:
        objects = await rig.client.list(MAPS)
        assert len(objects) == 300
        for limit in (0, 50):
            pages = [page async for page in list_pages(rig.client, TARGET, limit=limit)]
            assert sum(len(page.items) for page in pages) == 300
        assert not rig.rig.calls.count


async def test_what_is_not_read_is_not_sent(nats_url: str, tmp_path: Path):
    """The agent stops at the credit; the rest waits in the API server."""
    async with one_agent(nats_url, tmp_path, filled(500, 20_000)) as rig:
        before = rig.rig.bus.nc.stats["in_bytes"]
        response = await rig.client.stream(f"/api/v1/{MAPS.split('/')[1]}", limits=Limits())
        received = lambda: rig.rig.bus.nc.stats["in_bytes"] - before  # noqa: E731
        await eventually(lambda: received() > WINDOW_BYTES // 2)
        await never(lambda: received() > WINDOW_BYTES + 64 * 1024, timedelta(seconds=0.5))
        size = 0
        async for chunk in response.chunks():
            size += len(chunk)
        assert size > 9_000_000
        response.release()


@pytest.mark.slow
async def test_a_slow_answer_does_not_delay_others(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path, filled(200, 20_000)) as rig:
        rig.cluster.faults.add(Delay(timedelta(seconds=2)), resource="secrets")
        slow = asyncio.create_task(rig.client.list("v1/secrets"))
        unread = await rig.client.stream("/api/v1/configmaps", limits=Limits())
        began = time.monotonic()
        for number in range(20):
            await rig.client.create(MAPS, config_map(f"n{number}"))
        assert time.monotonic() - began < 1.5
        assert not slow.done()
        unread.close()
        assert await slow == []


# --- time and cancellation ----------------------------------------------------------------------


@pytest.mark.slow
async def test_a_slow_api_server_is_waited_for_as_long_as_the_caller_likes(
    nats_url: str, tmp_path: Path
):
    times = CallerTimes(silence=0.5, still_waiting=0.1)  # the answer takes longer than a silence
    async with one_agent(nats_url, tmp_path, caller_times=times) as rig:
        rig.cluster.faults.add(Delay(timedelta(seconds=1.2)), resource="configmaps", count=1)
        await rig.client.create(MAPS, config_map("a"))


@asynccontextmanager
async def hanging_server() -> AsyncGenerator[tuple[dict[str, Any], list[str]]]:
    """A server that answers nothing but who it is, and notes whose connection was closed."""
    closed: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).decode().split()[1]
        if path == KUBE_SYSTEM:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif not await reader.read():
            closed.append(path)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield kubeconfig(f"http://127.0.0.1:{port}"), closed
    server.close()
    await server.wait_closed()


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": url}}],
        "contexts": [{"name": "a", "context": {"cluster": "a"}}],
    }


async def test_a_deadline_ends_the_request_at_the_api_server(nats_url: str, tmp_path: Path):
    async with agent_rig(nats_url, tmp_path) as rig, hanging_server() as (document, closed):
        await rig.start(document)
        async with rig.client() as client:
            call = Call("GET", "/api/v1/pods", within=timedelta(seconds=0.3))
            with pytest.raises(errors.Unreachable):
                await client.request(call)
            await eventually(lambda: closed == ["/api/v1/pods"])


async def test_a_cancellation_reaches_the_api_server(nats_url: str, tmp_path: Path):
    async with agent_rig(nats_url, tmp_path) as rig, hanging_server() as (document, closed):
        await rig.start(document)
        async with rig.client() as client:
            asking = asyncio.create_task(client.request(Call("GET", "/api/v1/pods")))
            await never(lambda: closed, timedelta(seconds=0.3))
            asking.cancel()
            await eventually(lambda: closed == ["/api/v1/pods"])
            assert not rig.calls.count
            with pytest.raises(asyncio.CancelledError):
                await asking


@pytest.mark.slow
async def test_a_caller_that_vanishes_is_given_up(nats_url: str, tmp_path: Path):
    async with agent_rig(nats_url, tmp_path) as rig, hanging_server() as (document, closed):
        await rig.start(document)
        frame = Open(id="gone.1.1", method="GET", path="/api/v1/pods")
        rig.bus.publish_directly(api_subject("eu1"), encode_frame(frame))
        await eventually(lambda: closed == ["/api/v1/pods"], timedelta(seconds=10))


@pytest.mark.slow
async def test_a_watch_goes_through_and_ends_when_it_is_left(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        version = str(rig.cluster.resource_version)
        names: set[str] = set()

        async def follow() -> None:
            timeouts = WatchTimeouts(idle_timeout=timedelta(seconds=30))
            async for event in watch_events(rig.client, TARGET, version, timeouts=timeouts):
                names.add(str(event.metadata["name"]))

        following = asyncio.create_task(follow())
        await eventually(lambda: rig.cluster.open_watches)
        # Longer than either side stays without any frame.
        await stays(1, lambda: rig.cluster.open_watches, timedelta(seconds=2.5))
        for number in range(3):
            rig.cluster.create(MAPS, config_map(f"m{number}"), "default")
        await eventually(lambda: len(names) == 3)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        await eventually(lambda: not rig.cluster.open_watches)


# --- who is there -------------------------------------------------------------------------------


async def test_without_an_agent_a_cluster_is_unreachable_at_once(nats_url: str, tmp_path: Path):
    async with agent_rig(nats_url, tmp_path) as rig, rig.client() as client:
        began = time.monotonic()
        with pytest.raises(errors.Unreachable, match="'eu1': no agent of the cluster"):
            await client.list(MAPS)
        assert time.monotonic() - began < 1


async def test_two_agents_share_the_calls_and_each_call_runs_once(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        second = await rig.rig.start(rig.servers.kubeconfig())
        await asyncio.gather(*(rig.client.create(MAPS, config_map(f"m{n}")) for n in range(60)))
        creates = [request for request in rig.cluster.requests if request.verb == "create"]
        assert len(creates) == 60
        await rig.rig.stop(second)
        assert len(await rig.client.list(MAPS)) == 60


async def test_an_agent_that_stops_lets_its_calls_end_and_takes_no_others(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path) as rig:
        delay = rig.cluster.faults.add(Delay(timedelta(seconds=1)), resource="configmaps", count=1)
        creating = asyncio.create_task(rig.client.create(MAPS, config_map("a")))
        await eventually(lambda: delay.hits)
        stopping = asyncio.create_task(rig.rig.stop(rig.agent))
        assert (await creating)["metadata"]["name"] == "a"
        await stopping
        with pytest.raises(errors.Unreachable, match="no agent"):
            await rig.client.list(MAPS)


async def test_too_many_calls_are_refused_and_nothing_of_them_is_sent(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path, max_calls=2) as rig:
        hang = rig.cluster.faults.add(Hang(), resource="secrets")
        waiting = [asyncio.create_task(rig.client.list("v1/secrets")) for _ in range(2)]
        await eventually(lambda: hang.hits == 2)
        with pytest.raises(errors.TooManyRequests, match="2 calls already"):
            await rig.client.create(MAPS, config_map("a"))
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

        async def is_taken() -> bool:
            try:
                return bool(await rig.client.create(MAPS, config_map("a")))
            except errors.TooManyRequests:
                return False

        await eventually(is_taken)


async def test_an_api_server_that_is_down_is_named_as_it_is_without_an_agent(
    nats_url: str, tmp_path: Path
):
    async with agent_rig(nats_url, tmp_path) as rig, rig.client() as client:
        await rig.start(kubeconfig("http://127.0.0.1:1"))
        with pytest.raises(errors.Unreachable, match=r"cannot connect to 127\.0\.0\.1:1"):
            await client.list(MAPS)


# --- losses -------------------------------------------------------------------------------------


async def test_a_write_whose_agent_dies_before_it_answers_has_an_unknown_outcome(
    nats_url: str, tmp_path: Path
):
    async with one_agent(nats_url, tmp_path, stop_patience=timedelta()) as rig:
        # The object is created, and the answer comes late.
        rig.cluster.faults.add(
            Delay(timedelta(seconds=30), after_commit=True), verb="create", count=1
        )
        creating = asyncio.create_task(rig.client.create(MAPS, config_map("a")))
        await eventually(lambda: rig.cluster.get(MAPS, "default", "a"))
        await rig.rig.stop(rig.agent)
        with pytest.raises(errors.Unreachable, match="stopped before the call had ended"):
            await creating


@pytest.mark.slow
async def test_the_connection_to_nats_is_lost_during_calls(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        hang = rig.cluster.faults.add(Hang(), resource="configmaps", count=1)
        reading = asyncio.create_task(rig.client.list(MAPS))
        await eventually(lambda: hang.hits)
        cut_off(rig.rig.bus)
        with pytest.raises(errors.Unreachable, match="connection to NATS was lost"):
            await reading
        await rig.rig.bus.wait_connected()
        await rig.client.create(MAPS, config_map("a"))


async def test_nothing_is_kept_for_a_connection_that_is_down(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        cut_off(rig.rig.bus)
        await eventually(lambda: not rig.rig.bus.is_connected)
        with pytest.raises(errors.Unreachable, match="no connection to NATS"):
            await rig.client.create(MAPS, config_map("a"))
        await rig.rig.bus.wait_connected()
        await rig.client.create(MAPS, config_map("b"))
        assert rig.cluster.get(MAPS, "default", "a") is None


def cut_off(bus: Bus) -> None:
    cast("Any", bus.nc)._transport.close()


@asynccontextmanager
async def silent_agent(rig: AgentRig) -> AsyncGenerator[KubeClient]:
    """An agent that takes calls and says nothing."""

    async def take(_: object) -> None: ...

    async with (
        connected(rig.nats_url, name="silent") as bus,
        subscribed(bus, "fleetbus.api.eu1", take),
    ):
        await bus.nc.flush()
        async with rig.client() as client:
            yield client


async def test_an_agent_that_is_silent_is_given_up(nats_url: str, tmp_path: Path):
    async with agent_rig(nats_url, tmp_path, caller_times=QUICK_CALLER) as rig:
        async with silent_agent(rig) as client:
            with pytest.raises(KubeError, match="stopped answering"):
                await client.list(MAPS)
        assert not rig.calls.count


async def test_a_long_selector_goes_through(nats_url: str, tmp_path: Path):
    async with one_agent(nats_url, tmp_path) as rig:
        await rig.client.create(MAPS, config_map("a"))
        names = ",".join(f"value-{number}" for number in range(1_000))
        assert await rig.client.list(MAPS, label_selector=f"app in ({names})") == []
        assert await rig.client.list(MAPS, "default", label_selector=f"app notin ({names})")
