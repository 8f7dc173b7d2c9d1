"""Permanent losses: of stores, and of a cluster's history; each is followed by a check."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from faults.rig.load import RESOURCES
from faults.rig.settings import STORE_LOST, WATCHERS
from faults.watchers.faults import Fault, Scene
from fleetbus_proto.keys import KV_BUCKET

_STORE_LOSSES = 2
_RESTORED_COMMITS = (100, 1_000)
_BACK_SECONDS = 60.0
"""Time that a restored cluster waits for its watchers, on a machine that is busy."""


async def _with_watchers_down(scene: Scene) -> list[str]:
    """Perhaps some watchers die together with NATS, or all."""
    share = scene.random.choice([0.0, 0.5, 1.0])
    down = [name for name in WATCHERS if scene.random.random() < share]
    for name in down:
        scene.fleet.kill(name, "with-nats")
    return down


async def _replace_store(scene: Scene, *, keep: bool) -> None:
    copy = scene.fleet.copy_store() if keep else None
    if keep:
        await scene.pause(2, 5)  # what is stored now is lost
    scene.fleet.nats_server.kill()
    down = await _with_watchers_down(scene)
    scene.fleet.replace_store(copy)
    await scene.pause(0, 1)
    await scene.fleet.nats_server.restart()
    await scene.pause(0, 2)
    for name in down:
        scene.fleet.start(name)


async def _wipe_nats(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("nats-wiped"):
        await _replace_store(scene, keep=False)


async def _roll_back_nats(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("nats-rolled-back"):
        await _replace_store(scene, keep=True)


async def _lose_bucket(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("bucket-lost"):
        down = await _with_watchers_down(scene)
        await scene.taps.delete_stream(f"KV_{KV_BUCKET}")
        await scene.pause(0, 1)
        for name in down:
            scene.fleet.start(name)


async def _lose_stream(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("stream-lost"):
        await scene.taps.delete_stream("FLEETBUS_EVENTS")
        await scene.pause(0, 1)


async def _lose_store(scene: Scene) -> None:
    """The snapshot is gone, again and again, with the projector or without it (P13, W24).

    The bus and the clusters have everything, so no deletion may go unseen; nor does it when a
    watcher dies in the middle.
    """
    for _ in range(_STORE_LOSSES):
        served = _projectors_served(scene)
        async with scene.noted(STORE_LOST):
            if scene.random.random() < 0.5:
                scene.fleet.kill("projector", "with-the-store")
            scene.fleet.valkey.kill()  # it keeps nothing on disk
            await scene.pause(0, 1)
            await scene.fleet.valkey.restart()
            if not scene.fleet.services["projector"].is_running:
                scene.fleet.start("projector")
                await _until_served(scene, served + 1)  # without a store it does not start
            await scene.pause(0, 1)
            watcher = scene.watcher()
            scene.fleet.kill(watcher, "after-the-store")
            scene.fleet.start(watcher)
        await scene.pause(1, 2)


def _projectors_served(scene: Scene) -> int:
    """Return how many processes of the projector have begun so far."""
    return (scene.fleet.folder / "projector.log").read_bytes().count(b'"health_served"')


async def _until_served(scene: Scene, count: int) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(_BACK_SECONDS):
            while _projectors_served(scene) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)


async def _restore_etcd(scene: Scene) -> None:
    """The RV goes back, and with it what the cluster holds (W12).

    Nothing is written until its watchers are back, and what they have checkpointed is lost: a
    server that is, or climbs, past the version that they know, unseen, is found by an audit only.
    """
    cluster = scene.cluster()
    watches = len(RESOURCES) * len(scene.fleet.replicas_of(cluster))
    async with scene.noted("etcd-restored", cluster=cluster):
        down = await _with_watchers_down(scene)
        await scene.fleet.load(0)
        at = (await scene.fleet.admin.cluster(cluster)).resource_version
        revision = min(at, scene.taps.checkpointed(cluster, most=at))
        await scene.fleet.admin.roll_back(
            cluster, revision - scene.random.randint(*_RESTORED_COMMITS)
        )
        for name in down:
            scene.fleet.start(name)
        with suppress(TimeoutError):
            async with asyncio.timeout(_BACK_SECONDS):
                while await scene.open_watches(cluster) < watches:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        await scene.fleet.load(scene.rate)


LOSS_OF_STORE = Fault(STORE_LOST, 1, _lose_store)
LOSSES = (
    Fault("nats-rolled-back", 2, _roll_back_nats),
    Fault("nats-wiped", 1, _wipe_nats),
    Fault("bucket-lost", 1, _lose_bucket),
    Fault("stream-lost", 1, _lose_stream),
    Fault("etcd-restored", 1, _restore_etcd),
)
