"""The store past one machine: its master is killed under load, and a replica takes over (P11, P16).

On a Cluster the masters of the shards and of the queue are killed one after the other, on Sentinels
the one master; there its replica lags once, and once the master only hangs. Each time the snapshot
equals the API servers soon, no deletion is lost, nothing is deleted without an order, and the queue
goes on. With real processes and their own timers, so it is part of `make scenarios` only.
"""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from fleetbus_proto import keys
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.objects import pod
from support.rigs.copies import WITHIN, Copies, copies_rig
from support.rigs.fleet import Rig, fleet_rig
from support.servers.valkey_cluster import kill_and_fail_over, valkey_cluster
from support.servers.valkey_sentinel import valkey_with_sentinel

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
]
SHARDS = 4


async def under_load(copies: Copies, loss: asyncio.Task[None]) -> None:
    """Change objects from before the loss until after it, and wait until all is in step."""
    load = asyncio.create_task(copies.load.run())
    try:
        await loss
        await asyncio.sleep(2)  # the load goes on
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
                await asyncio.sleep(1)  # under load
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
            await asyncio.sleep(1)  # under load
            await servers.kill_and_fail_over()

        await under_load(copies, asyncio.create_task(fail_over()))


async def test_p11_a_replica_that_lacks_seconds_of_writes_becomes_the_master(
    tmp_path: Path, nats_url: str
) -> None:
    """Events that were applied, and requests that were taken and done, are gone with them."""
    async with (
        valkey_with_sentinel(tmp_path) as servers,
        copies_rig(tmp_path, nats_url, servers.url) as copies,
    ):

        async def fail_over() -> None:
            await servers.stop_replicating()
            # A Sentinel takes no replica that was apart for longer than ten times DOWN_AFTER.
            await asyncio.sleep(3)  # so much is acknowledged that only the master has
            assert await servers.lag() > 10_000
            await servers.kill_and_fail_over()

        await under_load(copies, asyncio.create_task(fail_over()))


async def test_p16_a_master_that_hangs_is_replaced_and_follows_when_it_goes_on(
    tmp_path: Path, nats_url: str
) -> None:
    async with (
        valkey_with_sentinel(tmp_path) as servers,
        copies_rig(tmp_path, nats_url, servers.url) as copies,
    ):
        process = servers.first.process

        async def fail_over() -> None:
            await asyncio.sleep(1)  # under load
            process.send_signal(signal.SIGSTOP)
            await servers.has_failed_over()

        try:
            await under_load(copies, asyncio.create_task(fail_over()))
        finally:
            process.send_signal(signal.SIGCONT)
        await under_load(copies, asyncio.create_task(servers.first_follows()))


async def test_p9_a_master_without_a_replica_is_missed_by_the_clusters_of_its_shards_only(
    tmp_path: Path, nats_url: str
) -> None:
    names = ("eu1", "us1", "hub", "a")
    async with (
        valkey_cluster(tmp_path, appendonly=True) as servers,
        fleet_rig(
            *names,
            folder=tmp_path,
            nats_url=nats_url,
            valkey_url=servers.url,
            resources=("v1/pods",),
            shards=SHARDS,
        ) as rig,
    ):
        rig.start_reconciler()
        for name in names:
            rig.clusters[name].create("v1/pods", pod("p"), "default")
            rig.start_watcher(name)
        await rig.synced("core/pods")
        snapshot_keys = SnapshotKeys(SHARDS)
        places = {name: snapshot_keys.clusters(snapshot_keys.shard_of(name)) for name in names}
        lost = await servers.owner_of(places["us1"])
        missed = [name for name in names if await servers.owner_of(places[name]) is lost]
        others = [name for name in names if name not in missed]
        assert others
        lost.kill()
        for number in range(10):
            changed = {"metadata": {"labels": {"n": f"{number}"}}}
            for name in names:
                rig.clusters[name].patch("v1/pods", "default", "p", changed)
            for name in others:
                await eventually(partial(has, rig, name), timedelta(seconds=5))
        await lost.restart()
        for name in missed:
            await eventually(partial(has, rig, name), WITHIN)
        await rig.synced("core/pods", within=WITHIN)


async def has(rig: Rig, name: str) -> bool:
    """Whether the snapshot has the pod as it is."""
    live = rig.clusters[name].get("v1/pods", "default", "p")
    try:
        entry = await rig.reader.get(name, "core/pods", "default", "p")
    except RedisError:
        return False
    assert live is not None
    return entry is not None and entry.resource_version == live["metadata"]["resourceVersion"]
