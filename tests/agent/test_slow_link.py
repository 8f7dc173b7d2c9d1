"""An agent behind a link of 1 Mbit/s, 200 ms round trip and one packet in a hundred lost."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fleetbus.agent_calls.pending import Times as CallerTimes
from fleetbus.kube.client import KubeClient
from fleetbus_agent.gateway import Times
from fleetbus_emulator.apiserver import Cluster, serve
from support.full import FULL
from support.hostile.slow_link import slow_link
from support.objects import config_map
from support.rigs.agents import agent_rig

MAPS = "v1/configmaps"
BYTES_PER_SECOND = 125_000
OBJECTS = 40 if FULL else 16


@pytest.fixture
async def client(nats_url: str, tmp_path: Path) -> AsyncGenerator[KubeClient]:
    async with far_away(nats_url, tmp_path) as client:
        yield client


@asynccontextmanager
async def far_away(nats_url: str, folder: Path) -> AsyncGenerator[KubeClient]:
    cluster = Cluster("eu1")
    for number in range(OBJECTS):
        text = base64.b64encode(random.Random(number).randbytes(18_000)).decode()  # packs badly
        cluster.create(MAPS, config_map(f"m{number}") | {"data": {"k": text}}, "default")
    port = urlsplit(nats_url).port
    assert port is not None
    async with (
        serve([cluster]) as servers,
        slow_link(port, bytes_per_second=BYTES_PER_SECOND, delay=0.1, loss=0.01) as link,
        agent_rig(nats_url, folder, times=Times(), caller_times=CallerTimes()) as rig,
    ):
        await rig.start(servers.kubeconfig(), nats_url=f"nats://127.0.0.1:{link.port}")
        async with rig.client() as client:
            yield client


@pytest.mark.slow
async def test_a_list_takes_as_long_as_the_link_needs_and_others_go_past_it(client: KubeClient):
    size = OBJECTS * 18_500  # as gzip leaves it
    began = time.monotonic()
    listing = asyncio.create_task(client.list(MAPS))
    waited: list[float] = []
    while not listing.done():
        at = time.monotonic()
        await client.get("v1/namespaces", "", "default")
        waited.append(time.monotonic() - at)
    assert len(await listing) == OBJECTS
    seconds = time.monotonic() - began
    assert seconds < 2 * size / BYTES_PER_SECOND + 2
    assert min(waited) >= 0.2
    assert sorted(waited)[len(waited) // 2] < 1.5, waited


@pytest.mark.slow
async def test_many_writes_at_once_all_arrive(client: KubeClient):
    objects = [config_map(f"n{number}") for number in range(60)]
    began = time.monotonic()
    created = await asyncio.gather(*(client.create(MAPS, obj) for obj in objects))
    assert len(created) == 60
    assert time.monotonic() - began < 5


@pytest.mark.slow
async def test_a_large_write_arrives(client: KubeClient):
    text = base64.b64encode(random.Random(0).randbytes(150_000)).decode()
    created = await client.create(MAPS, config_map("large") | {"data": {"k": text}})
    assert created["data"]["k"] == text
