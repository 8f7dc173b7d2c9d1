"""The store past one machine: its master is killed under load, and a replica takes over (P11, P16).

On a Cluster the masters of the shards and of the queue are killed one after the other, on Sentinels
the one master. Each time the snapshot equals the API servers soon, no deletion is lost, nothing is
deleted without an order, and the queue goes on. With real processes and their own timers, so it is
part of `make scenarios` only.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleetbus_proto import keys
from support.eventually import eventually
from support.rigs.copies import WITHIN, Copies, copies_rig
from support.rigs.scenario import FULL
from support.servers.valkey_cluster import kill_and_fail_over, valkey_cluster
from support.servers.valkey_sentinel import valkey_with_sentinel

pytestmark = [
    pytest.mark.skipif(not FULL, reason="a minute and more: make scenarios"),
    pytest.mark.timeout(600),
]
SHARDS = 4


async def under_load(copies: Copies, loss: asyncio.Task[None]) -> None:
    """Change objects from before the loss until after it, and wait until all is in step."""
    load = asyncio.create_task(copies.load.run())
    try:
        await loss
        await asyncio.sleep(2)
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
    await eventually(copies.is_in_step, WITHIN)
    copies.check()


async def test_p16_masters_of_a_cluster_are_killed_and_replaced_by_their_replicas(
    tmp_path: Path, nats_url: str
) -> None:
    async with (
        valkey_cluster(tmp_path, has_replicas=True, appendonly=True) as servers,
        copies_rig(tmp_path, nats_url, servers.url, shards=SHARDS) as copies,
    ):
        held = copies.keys
        places = [held.clusters(held.shard_of(name)) for name in ("a", "b")]
        for place in (*places, keys.queue("copier", "dirty")):

            async def fail_over(place: str = place) -> None:
                await asyncio.sleep(1)
                lost = await kill_and_fail_over(servers, place)
                await lost.restart()  # as a replica of the new master
                await eventually(servers.is_up)

            await under_load(copies, asyncio.create_task(fail_over()))


async def test_p16_the_master_that_sentinels_name_is_killed_and_replaced_by_its_replica(
    tmp_path: Path, nats_url: str
) -> None:
    async with (
        valkey_with_sentinel(tmp_path) as servers,
        copies_rig(tmp_path, nats_url, servers.url) as copies,
    ):

        async def fail_over() -> None:
            await asyncio.sleep(1)
            await servers.kill_and_fail_over()

        await under_load(copies, asyncio.create_task(fail_over()))
