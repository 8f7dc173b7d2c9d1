"""The lists of faults: kills at chosen points and transient faults; losses are in `losses`.

Each is a coroutine that does the damage, waits, and undoes what does not pass by itself; all are
done from outside, by signals, links, stores and the faults of the emulated clusters. A new kind is
one more function and one more entry. `Scene` holds everything that they may touch.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from faults.rig.fleet import Fleet
from faults.rig.recorder import Taps, checkpoints_of
from faults.rig.scene import BaseScene
from faults.rig.settings import CLUSTERS, WATCHERS
from fleetbus_emulator.apiserver import (
    Compact,
    CutAnswer,
    CutWatch,
    Delay,
    EndWatch,
    Expire,
    Fail,
    Hang,
    PartialList,
    Partition,
    StaleList,
    StallWatch,
)
from fleetbus_emulator.apiserver.admin import AdminError
from fleetbus_emulator.apiserver.faults import Action
from fleetbus_proto.subjects import status_subject

_LAST_LOST = 0.3
_EMPTY_AGAIN_AFTER = 60.0
"""By then the list that the deletion fuse asks for has come, on a busy machine too."""
_POINT_PATIENCE = 3.0
"""Time that a kill waits for its point; then it comes at once."""


@dataclass
class Scene(BaseScene[Fleet]):
    """Everything that a fault may touch, and the random generator.

    Attributes:
        rate: of the load.
        bus_lock: one fault of NATS at a time.
        cluster_locks: one partition of a cluster at a time.
        emptied: when the lists of a cluster were empty by a fault, by its name.
    """

    taps: Taps
    rate: float
    bus_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    cluster_locks: dict[str, asyncio.Lock] = field(
        default_factory=lambda: {name: asyncio.Lock() for name in CLUSTERS}
    )
    emptied: dict[str, float] = field(default_factory=dict[str, float])

    def cluster(self) -> str:
        return self.random.choice(CLUSTERS)

    def watcher(self) -> str:
        return self.random.choice(list(WATCHERS))

    async def open_watches(self, cluster: str) -> int:
        return (await self.fleet.admin.cluster(cluster)).open_watches

    @asynccontextmanager
    async def rule(
        self, kind: str, cluster: str, action: Action, **match: Any
    ) -> AsyncGenerator[None]:
        """A rule of an emulated cluster while the block lasts."""
        async with self.noted(kind, cluster=cluster):
            added = await self.fleet.admin.add_fault(cluster, action, **match)
            try:
                yield
            finally:
                with suppress(AdminError):
                    gone = await self.fleet.admin.remove_fault(cluster, added.id)
                    self.fleet.note("rule", fault=kind, cluster=cluster, hits=gone.hits)


Act = Callable[[Scene], Awaitable[None]]
Point = Callable[[Scene, str], Awaitable[None]]


@dataclass(frozen=True)
class Fault:
    """One kind of damage; `weight` is how often it is chosen, beside the others."""

    name: str
    weight: int
    act: Act


@dataclass(frozen=True)
class Kill:
    """When a watcher is killed: `wait` returns at that point."""

    name: str
    weight: int
    wait: Point


# --- points at which a watcher is killed ------------------------------------------------------


async def _at_any_time(scene: Scene, _watcher: str) -> None:
    await scene.pause(0, 0.3)


async def _in_a_list(scene: Scene, watcher: str) -> None:
    cluster = WATCHERS[watcher]
    since = (await scene.fleet.admin.cluster(cluster)).requests
    expire, slow = Expire("stream"), Delay(timedelta(seconds=0.3))
    async with (
        scene.rule("slow-list", cluster, slow, verb="list", count=20),
        scene.rule("expire-stream", cluster, expire, verb="watch", count=2),
    ):
        with suppress(TimeoutError):
            async with asyncio.timeout(_POINT_PATIENCE):
                while not await _has_listed(scene, cluster, watcher, since):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await scene.pause(0, 0.8)  # one of its pages
        await _kill_now(scene, watcher, "in-list")


async def _has_listed(scene: Scene, cluster: str, watcher: str, since: int) -> bool:
    page = await scene.fleet.admin.requests(cluster, since=since)
    return any(
        r.verb == "list" and r.query.get("limit") != "1" and r.user_agent.endswith(f"/{watcher}")
        for r in page.requests
    )


async def _at_the_end_of_an_epoch(scene: Scene, watcher: str) -> None:
    cluster = WATCHERS[watcher]
    async with scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=1):
        await scene.taps.wait(f"fleetbus.epochs.{cluster}.", _POINT_PATIENCE)
        await scene.pause(0, 0.02)


async def _at_a_heartbeat(scene: Scene, watcher: str) -> None:
    """Between the heartbeat and the checkpoint that it covers (W10)."""
    place = status_subject(WATCHERS[watcher], watcher)
    await scene.taps.wait(place, _POINT_PATIENCE)


async def _at_a_checkpoint(scene: Scene, watcher: str) -> None:
    place = checkpoints_of(WATCHERS[watcher])
    await scene.taps.wait(place, _POINT_PATIENCE)
    await scene.pause(0, 0.005)


async def _before_an_answer(scene: Scene, watcher: str) -> None:
    """Its publishes are stored, but the acknowledgements never reach it."""
    scene.fleet.links[watcher].hold(up=False)
    await scene.pause(0.05, 0.5)


async def _before_a_publish(scene: Scene, watcher: str) -> None:
    """It has read events and handed them over; they never arrive."""
    scene.fleet.links[watcher].hold(down=False)
    await scene.pause(0.05, 0.5)


async def _with_lost_publishes(scene: Scene, watcher: str) -> None:
    """Some publishes are lost, later ones are answered; a checkpoint follows, then the end (W4)."""
    link = scene.fleet.links[watcher]
    link.loses = lambda subject: (
        subject.startswith("fleetbus.events.") and scene.random.random() < 0.05
    )
    await scene.pause(0.5, 1.0)
    place = checkpoints_of(WATCHERS[watcher])
    await scene.taps.wait(place, _POINT_PATIENCE)
    scene.fleet.note("lost", process=watcher, publishes=link.lost)


async def finish(scene: Scene) -> None:
    """The last changes of all are in doubt: some publishes are lost, and every watcher dies.

    A checkpoint that covers what is not stored would never be made good by a later change.
    """
    async with scene.noted("last-changes"):
        for link in scene.fleet.links.values():
            link.loses = lambda subject: (
                subject.startswith("fleetbus.events.") and scene.random.random() < _LAST_LOST
            )
        await asyncio.sleep(1)
        await scene.fleet.load(0)
        clusters = sorted(set(WATCHERS.values()))
        places = [checkpoints_of(cluster) for cluster in clusters]
        await asyncio.gather(*(scene.taps.wait(place, _POINT_PATIENCE) for place in places))
        await asyncio.sleep(0.2)
        for watcher in WATCHERS:
            scene.fleet.kill(watcher, "last-changes")
            scene.fleet.links[watcher].heal()
            scene.fleet.start(watcher)


async def _while_it_starts(scene: Scene, watcher: str) -> None:
    await _kill_now(scene, watcher, "before-start")
    scene.fleet.start(watcher)
    await scene.pause(0.2, 1.2)


async def _kill_now(scene: Scene, watcher: str, why: str) -> None:
    scene.fleet.kill(watcher, why)
    await scene.pause(0, 0.05)


KILLS = (
    Kill("any-time", 8, _at_any_time),
    Kill("list", 4, _in_a_list),
    Kill("epoch-end", 3, _at_the_end_of_an_epoch),
    Kill("heartbeat", 3, _at_a_heartbeat),
    Kill("checkpoint", 3, _at_a_checkpoint),
    Kill("before-ack", 3, _before_an_answer),
    Kill("before-publish", 2, _before_a_publish),
    Kill("lost-publishes", 3, _with_lost_publishes),
    Kill("start", 2, _while_it_starts),
)


# --- what passes --------------------------------------------------------------------------------


def _ruled(name: str, weight: int, make: Callable[[Random], Action], **match: Any) -> Fault:
    """A rule on one cluster for a second or two."""

    async def act(scene: Scene) -> None:
        async with scene.rule(name, scene.cluster(), make(scene.random), **match):
            await scene.pause(1, 2.5)

    return Fault(name, weight, act)


async def _stall(scene: Scene) -> None:
    """A watch goes silent for longer than a watcher bears it (W11)."""
    async with scene.rule("stall", scene.cluster(), StallWatch(), verb="watch", count=2):
        await asyncio.sleep(6)


async def _compact_in_lists(scene: Scene) -> None:
    """Compaction is faster than a relist: page 2 is gone, each time (W2)."""
    cluster = scene.cluster()
    async with (
        scene.rule("compact-in-list", cluster, Compact(), verb="list", count=5),
        scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=1),
    ):
        await asyncio.sleep(3)


async def _page_gone(scene: Scene) -> None:
    cluster = scene.cluster()
    async with (
        scene.rule("expire-page", cluster, Expire("page"), verb="list", count=2),
        scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=2),
    ):
        await asyncio.sleep(2)


async def _compact(scene: Scene) -> None:
    """A watcher that is down meanwhile finds its checkpoint too old."""
    cluster = scene.cluster()
    watchers = scene.fleet.replicas_of(cluster)
    async with scene.noted("compact", cluster=cluster):
        for watcher in watchers:
            scene.fleet.signal(watcher, signal.SIGSTOP)
        try:
            await scene.pause(0.5, 1.5)
            await scene.fleet.admin.compact(cluster)
        finally:  # a campaign that ends meanwhile would wait for ever for who stands still
            for watcher in watchers:
                scene.fleet.signal(watcher, signal.SIGCONT)
        for watcher in watchers:
            scene.fleet.kill(watcher, "compacted-away")
            scene.fleet.start(watcher)


async def _cut_list(scene: Scene) -> None:
    cluster = scene.cluster()
    cut = CutAnswer(share=scene.random.random(), reset=scene.random.random() < 0.5)
    async with (
        scene.rule("cut-list", cluster, cut, verb="list", count=3),
        scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=1),
    ):
        await asyncio.sleep(2)


async def _empty_list(scene: Scene) -> None:
    """A list that is empty by a bug of the server deletes nothing (P7).

    Not so a second one that is asked for because of the first: two lists that agree are believed.
    """
    cluster, now = scene.cluster(), time.monotonic()
    if now - scene.emptied.get(cluster, float("-inf")) < _EMPTY_AGAIN_AFTER:
        return
    scene.emptied[cluster] = now
    async with (
        scene.rule(
            "empty-list", cluster, PartialList(), verb="list", resource="configmaps", count=2
        ),
        scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=1),
    ):
        await asyncio.sleep(1.5)


async def _stale_lists(scene: Scene) -> None:
    """A watch cache that is behind: who lists at version 0 gets the past (W2)."""
    cluster = scene.cluster()
    async with scene.rule("stale-list", cluster, StaleList(), verb="list"):
        await scene.pause(1, 2)
        async with scene.rule("expire-stream", cluster, Expire("stream"), verb="watch", count=2):
            await asyncio.sleep(1.5)


async def _part_cluster(scene: Scene) -> None:
    cluster, how = scene.cluster(), scene.random.choice(list(Partition))
    async with scene.cluster_locks[cluster], scene.noted(f"partition-{how}", cluster=cluster):
        await scene.fleet.admin.partition(cluster, how)
        try:
            await scene.pause(1, 6)
        finally:
            await scene.fleet.admin.heal(cluster)


async def _pause_watcher(scene: Scene) -> None:
    watcher = scene.watcher()
    async with scene.noted("sigstop", process=watcher):
        scene.fleet.signal(watcher, signal.SIGSTOP)
        try:
            await scene.pause(0.5, 5)
        finally:
            scene.fleet.signal(watcher, signal.SIGCONT)


async def _kill_projector(scene: Scene) -> None:
    async with scene.noted("kill-projector"):
        scene.fleet.kill("projector", "any-time")
        await scene.pause(0, 1)
        scene.fleet.start("projector")


async def _part_bus(scene: Scene) -> None:
    """The way between a watcher and NATS: both directions, one, or refused."""
    watcher, how = scene.watcher(), scene.random.choice(["hold", "hold-up", "hold-down", "refuse"])
    link = scene.fleet.links[watcher]
    async with scene.noted(f"bus-{how}", process=watcher):
        if how == "refuse":
            link.refuse()
        else:
            link.hold(up=how != "hold-down", down=how != "hold-up")
        try:
            await scene.pause(0.5, 6)
        finally:
            if how != "refuse" and scene.random.random() < 0.5:
                link.cut()  # what was held is lost
            link.heal()


async def _lose_publishes(scene: Scene) -> None:
    watcher = scene.watcher()
    link = scene.fleet.links[watcher]
    async with scene.noted("lost-publishes", process=watcher):
        link.loses = lambda _subject: scene.random.random() < 0.05
        try:
            await scene.pause(1, 3)
        finally:
            link.heal()


async def _kill_nats(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("kill-nats"):
        scene.fleet.nats_server.kill()
        await scene.pause(0, 2)
        await scene.fleet.nats_server.restart()
        await scene.pause(1, 2)


async def _pause_nats(scene: Scene) -> None:
    async with scene.bus_lock, scene.noted("sigstop-nats"):
        scene.fleet.nats_server.process.send_signal(signal.SIGSTOP)
        try:
            await scene.pause(0.5, 4)
        finally:
            scene.fleet.nats_server.process.send_signal(signal.SIGCONT)


FAULTS = (
    _ruled("expire-stream", 4, lambda _: Expire("stream"), verb="watch", count=2),
    _ruled("expire-open", 3, lambda _: Expire("open"), verb="watch", count=2),
    _ruled("cut-watch", 4, lambda r: CutWatch(reset=r.random() < 0.5), verb="watch", count=4),
    _ruled("end-watch", 3, lambda r: EndWatch(mid_line=r.random() < 0.5), verb="watch", count=4),
    _ruled("hang", 2, lambda _: Hang(), verb="read", count=1),
    _ruled("fail-500", 3, lambda _: Fail(500), verb="read", probability=0.5),
    _ruled(
        "fail-429",
        3,
        lambda _: Fail(429, retry_after=timedelta(seconds=1)),
        verb="read",
        probability=0.5,
    ),
    Fault("stall", 3, _stall),
    Fault("compact-in-list", 2, _compact_in_lists),
    Fault("expire-page", 2, _page_gone),
    Fault("compact", 2, _compact),
    Fault("cut-list", 3, _cut_list),
    Fault("empty-list", 1, _empty_list),
    Fault("stale-list", 2, _stale_lists),
    Fault("partition", 4, _part_cluster),
    Fault("sigstop", 4, _pause_watcher),
    Fault("kill-projector", 2, _kill_projector),
    Fault("bus-partition", 4, _part_bus),
    Fault("lost-publishes", 2, _lose_publishes),
    Fault("kill-nats", 3, _kill_nats),
    Fault("sigstop-nats", 2, _pause_nats),
)
