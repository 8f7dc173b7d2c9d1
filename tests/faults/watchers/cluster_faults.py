"""The faults of a NATS cluster of three: one server dies, stands still or loses its disk; or two.

The server is chosen by what it does for us: it leads the stream, the bucket, the projector's
durable or the cluster itself, or the load's watchers are connected to it.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from faults.rig.fleet import Fleet
from faults.watchers.faults import FAULTS, Fault, Scene
from faults.watchers.losses import LOSSES
from fleetbus.bus.connection import connected
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.servers.nats_cluster import Member, consumer_leader, stream_leader

_ONE_SERVER: Final = ("kill-nats", "sigstop-nats", "nats-rolled-back", "nats-wiped")
"""The faults of a NATS that is a single server."""
_ELECTION: Final = (4.0, 9.0)
"""Seconds that a server waits for its leader before it stands for election itself."""

_FOUND: Final = timedelta(seconds=60)
"""By then there is a leader again."""

Choose = Callable[[Fleet], Awaitable[str]]


async def _stream_leader(fleet: Fleet) -> str:
    async with connected(fleet.nats.url, name="faults") as bus:
        return await stream_leader(bus, STREAM)


async def _bucket_leader(fleet: Fleet) -> str:
    async with connected(fleet.nats.url, name="faults") as bus:
        return await stream_leader(bus, f"KV_{KV_BUCKET}")


async def _consumer_leader(fleet: Fleet) -> str:
    async with connected(fleet.nats.url, name="faults") as bus:
        return await consumer_leader(bus, PROJECTOR)


async def _meta_leader(fleet: Fleet) -> str:
    return await fleet.nats_cluster.meta_leader()


_ROLES: Final[dict[str, Choose]] = {
    "stream-leader": _stream_leader,
    "bucket-leader": _bucket_leader,
    "consumer-leader": _consumer_leader,
    "meta-leader": _meta_leader,
}


@asynccontextmanager
async def _all_again(scene: Scene) -> AsyncGenerator[None]:
    """At the end, also of a campaign, all servers run and have caught up."""
    try:
        yield
    finally:
        scene.fleet.revive_nats()
        await scene.fleet.nats_cluster.healthy()
    await scene.pause(1, 3)


async def _choose(scene: Scene) -> tuple[str, Member]:
    role = scene.random.choice(list(_ROLES))

    async def find() -> str:
        try:
            return await _ROLES[role](scene.fleet)
        except BusError:  # an election, or the stream was lost
            return ""

    return role, scene.fleet.nats_cluster.members[await eventually(find, _FOUND)]


async def _kill_one(scene: Scene) -> None:
    async with scene.bus_lock, _all_again(scene):
        role, member = await _choose(scene)
        async with scene.noted("kill-nats-server", role=role, server=member.name):
            member.kill()
            # Sometimes it is back before the others have elected a new leader.
            await scene.pause(0, _ELECTION[1] + 3)


async def _lose_disk(scene: Scene) -> None:
    async with scene.bus_lock, _all_again(scene):
        role, member = await _choose(scene)
        async with scene.noted("nats-disk-lost", role=role, server=member.name):
            member.kill()
            member.lose_disk()
            await scene.pause(0, _ELECTION[1] + 3)


async def _kill_two(scene: Scene) -> None:
    """Without a quorum nothing is stored, and nobody may think that it is."""
    async with scene.bus_lock, _all_again(scene):
        first, second = scene.random.sample(list(scene.fleet.nats_cluster.members.values()), 2)
        async with scene.noted("nats-quorum-lost", servers=[first.name, second.name]):
            first.kill()
            second.kill()
            await scene.pause(*_ELECTION)


async def _pause_one(scene: Scene) -> None:
    async with scene.bus_lock, _all_again(scene):
        role, member = await _choose(scene)
        async with scene.noted("sigstop-nats-server", role=role, server=member.name):
            member.child.process.send_signal(signal.SIGSTOP)
            await scene.pause(0.5, _ELECTION[1] + 3)


CLUSTER_FAULTS: Final = (
    *(fault for fault in FAULTS if fault.name not in _ONE_SERVER),
    Fault("kill-nats-server", 6, _kill_one),
    Fault("nats-disk-lost", 3, _lose_disk),
    Fault("nats-quorum-lost", 2, _kill_two),
    Fault("sigstop-nats-server", 3, _pause_one),
)
CLUSTER_LOSSES: Final = tuple(loss for loss in LOSSES if loss.name not in _ONE_SERVER)
