"""Whatever store is lost or set back, nothing is deleted by it and every change arrives.

The victim, tests/scripts/careless_copier.py, copies config maps from A to B and believes all that
the snapshot says. Rules P9 to P14.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.controller.load import load_controllers
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.store.connection import StoreEmpty
from fleetbus.workqueue.queue import QueuePolicy
from fleetbus.workqueue.redis import RedisQueue
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.full import FULL
from support.hostile.careless_copies import COPIER, KEY, MAPS, OBJECTS, Load, data, versions
from support.hostile.chaos_proxy import Link, chaos_link
from support.rigs.fleet import Rig, fleet_rig

WITHIN = timedelta(seconds=30)
QUICK: dict[str, Any] = {
    "heartbeat_busy": timedelta(milliseconds=100),
    "heartbeat_idle": timedelta(milliseconds=100),
    "discovery_interval": timedelta(seconds=30),
}
SCALED: dict[str, Any] = {
    "fuse_wait": timedelta(milliseconds=300),
    "incomplete_wait": timedelta(milliseconds=600),
    "audit_wait": timedelta(milliseconds=300),
}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *(
            "fleetbus.worker.initial_sync.CHECK_EVERY",
            "fleetbus.intake.binding.CHECK_EVERY",
            "fleetbus.snapshot.offsets.checkpoint.CHECK_EVERY",
        ),
        "fleetbus.bus.consume.RETRY_PAUSE",
    ):
        monkeypatch.setattr(name, timedelta(milliseconds=100))
    # A store that went back holds leases of before; they are reaped after one of them (Q6).
    short = functools.partial(QueuePolicy, lease=timedelta(seconds=2))
    monkeypatch.setattr("fleetbus.worker.host.QueuePolicy", short)
    monkeypatch.setattr("fleetbus.worker.reaper.REAP_EVERY", timedelta(milliseconds=200))


@dataclass
class World:
    """A fleet of A and B whose stores may be taken away."""

    rig: Rig
    nats: NatsServer
    valkey: ValkeyServer
    way: Link
    spare: ValkeyServer
    load: Load
    folder: Path

    def start(self) -> None:
        self.rig.start_reconciler(*load_controllers([COPIER]), **SCALED)
        for name in ("a", "b"):
            self.rig.start_watcher(name, **QUICK)

    async def stop(self) -> None:
        for name in ("a", "b"):
            await self.rig.stop_watcher(name)
        await self.rig.stop_reconciler()

    @asynccontextmanager
    async def loaded(self) -> AsyncGenerator[None]:
        task = asyncio.create_task(self.load.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def redis(self) -> Redis:
        return Redis.from_url(self.valkey.url)

    # --- what must be true -------------------------------------------------------------------

    async def is_in_step(self) -> bool:
        """The snapshot is complete and equals the API servers, and B has what A has."""
        if data(self.rig.clusters["a"]) != data(self.rig.clusters["b"]):
            return False
        try:
            by_cluster = await self.rig.reader.freshness(("a", "b"), KEY)
            versions_of = [await self.versions(name) for name in ("a", "b")]
        except StoreEmpty:
            return False
        except Exception:  # noqa: BLE001 -- a connection of before the store went
            return False
        truth = [versions(self.rig.clusters[name]) for name in ("a", "b")]
        return versions_of == truth and all(
            freshness.is_complete for freshness in by_cluster.values()
        )

    async def versions(self, name: str) -> dict[str, str]:
        page = await self.rig.reader.list(ListQuery(clusters=[name], resource=KEY))
        return {entry.name: entry.resource_version for entry in page.entries}

    def check_deletions(self) -> None:
        """Promise 1: what was deleted in B is what had been deleted in A."""
        deletes = [r for r in self.rig.clusters["b"].requests if r.verb.startswith("delete")]
        assert {r.path.rpartition("/")[2] for r in deletes} <= self.load.deleted

    async def settled(self, step: str) -> None:
        try:
            await eventually(self.is_in_step, WITHIN)
            self.check_deletions()
        except AssertionError as e:
            e.add_note(f"after: {step}")
            e.add_note(await self.reported())
            raise

    async def reported(self) -> str:
        a, b = (data(self.rig.clusters[name]) for name in ("a", "b"))
        await self.rig.redis.connection_pool.disconnect()  # of before the store went
        queue = RedisQueue(self.rig.redis, "copier")
        waiting = await queue.stats(), await queue.processing()
        await queue.aclose()
        reported = [f"queue: {waiting}"]
        reported += [f"copy differs: {n}" for n in a.keys() | b.keys() if a.get(n) != b.get(n)]
        for name, freshness in (await self.rig.reader.freshness(("a", "b"), KEY)).items():
            copies, truth = await self.versions(name), versions(self.rig.clusters[name])
            reported += [f"{name}: {freshness}, differs: {dict(copies.items() ^ truth.items())}"]
        return "\n".join(reported)

    # --- losses -------------------------------------------------------------------------------

    async def lose(self, loss: Loss) -> None:
        async with self.loaded():
            await asyncio.sleep(0.2)  # under load
            await loss(self)
            await asyncio.sleep(0.2)  # under load
        await self.settled(loss.__name__)


Loss = Callable[[World], Coroutine[Any, Any, None]]


async def redis_flushed(world: World) -> None:
    async with world.redis as redis:
        await redis.flushall()


async def redis_restarted_empty(world: World) -> None:
    world.valkey.kill()
    await world.valkey.restart()


async def redis_rolled_back(world: World) -> None:
    async with world.redis as redis:
        await redis.save()
    await asyncio.sleep(0.7)  # what is written now is lost
    world.valkey.kill()
    await world.valkey.restart()
    forget_copy(world)


def forget_copy(world: World) -> None:
    for path in (world.folder / "valkey").glob("*/*.rdb"):
        path.unlink()


async def redis_failed_over(world: World) -> None:
    """A replica that stands still for a while, and is promoted then."""
    port = world.valkey.url.rpartition(":")[2]
    async with world.redis as primary, Redis.from_url(world.spare.url) as replica:
        await primary.config_set("repl-diskless-sync-delay", "0")
        await replica.replicaof("127.0.0.1", port)

        async def is_in_step() -> bool:
            return (await replica.info("replication"))["master_link_status"] == "up"

        await eventually(is_in_step)
        await replica.replicaof("NO", "ONE")
        await asyncio.sleep(0.7)  # what is written now is lost
    await world.way.turn_to(int(world.spare.url.rpartition(":")[2]))
    world.valkey, world.spare = world.spare, world.valkey


async def nats_wiped(world: World) -> None:
    world.nats.kill()
    shutil.rmtree(world.nats.store_dir / "jetstream")
    await world.nats.restart()


async def nats_rolled_back(world: World) -> None:
    async with roll_back_of_nats(world):
        await asyncio.sleep(0.5)  # what is written now is lost


@asynccontextmanager
async def roll_back_of_nats(world: World) -> AsyncGenerator[None]:
    store, copy = world.nats.store_dir / "jetstream", world.folder / "copy"
    world.nats.kill()  # a copy of files that are being written would not be one of any moment
    shutil.copytree(store, copy)
    await world.nats.restart()
    yield
    world.nats.kill()
    shutil.rmtree(store)
    copy.rename(store)
    await world.nats.restart()


async def bucket_lost(world: World) -> None:
    async with connected(world.nats.url, name="test") as bus:
        await call_jetstream(bus, f"STREAM.DELETE.KV_{KV_BUCKET}")


async def both_wiped(world: World) -> None:
    await nats_wiped(world)
    await redis_flushed(world)


async def both_rolled_back(world: World) -> None:
    async with roll_back_of_nats(world):
        await redis_rolled_back(world)


async def all_gone_at_once(world: World) -> None:
    """Also every process, and the deletions of meanwhile are found by the copies alone."""
    await world.stop()
    world.nats.kill()
    shutil.rmtree(world.nats.store_dir / "jetstream")
    await redis_restarted_empty(world)
    await world.nats.restart()
    world.start()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with AsyncExitStack() as stack:
        stack.enter_context(capture_logs())  # else each failure prints its stack, in colours
        enter = stack.enter_async_context
        nats = await enter(nats_server(store_dir=tmp_path / "nats"))
        first, spare = [await enter(store_in(tmp_path)) for _ in range(2)]
        way = await enter(chaos_link(int(first.url.rpartition(":")[2])))
        rig = await enter(
            fleet_rig(
                *("a", "b"),
                folder=tmp_path,
                nats_url=nats.url,
                valkey_url=f"redis://127.0.0.1:{way.port}",
                resources=(MAPS,),
                has_agents=True,
            )
        )
        rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=100))
        world = World(rig, nats, first, way, spare, Load(rig.clusters["a"]), tmp_path)
        for number in range(OBJECTS):
            world.load.write(f"m{number}")
        world.start()
        await world.settled("the start")
        yield world


@asynccontextmanager
async def store_in(folder: Path) -> AsyncGenerator[ValkeyServer]:
    store_folder = folder / "valkey"
    store_folder.mkdir(exist_ok=True)
    async with valkey_server(dir=store_folder / f"{len(list(store_folder.iterdir()))}") as server:
        yield server


def losses(quick: Sequence[Loss], *full: Loss) -> Sequence[Loss]:
    """All of them in `make scenarios`; each takes some seconds."""
    return [*quick, *(full if FULL else ())]


@pytest.mark.full  # the store alone: the tests of the reconciler and of the SDK have it, too
async def test_p11_p13_a_store_that_was_lost_or_went_back_deletes_nothing(world: World) -> None:
    for loss in losses(
        [redis_flushed, redis_failed_over], redis_rolled_back, redis_restarted_empty
    ):
        await world.lose(loss)


@pytest.mark.full  # the bus alone: tests of B1 and of the watcher have it, too
async def test_p12_a_bus_that_was_lost_or_went_back_deletes_nothing(world: World) -> None:
    for loss in (nats_wiped, nats_rolled_back, bucket_lost):
        await world.lose(loss)


@pytest.mark.slow
async def test_p14_stores_that_are_lost_together_delete_nothing(world: World) -> None:
    for loss in losses([all_gone_at_once], both_wiped, both_rolled_back):
        await world.lose(loss)
