"""A controller that is late loses nothing, and holds up no other (rules P8, P9, P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.durables import consumer_info
from fleetbus.controller.controller import Controller
from fleetbus.reconcile import Request
from fleetbus.snapshot.write import SnapshotWriter
from fleetbus_proto.events import Event
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
SOON = timedelta(seconds=20)


class SlowMap:
    """A map that does not answer before it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.calls = 0

    async def __call__(self, object: Any, request: Request, fleet: Any) -> list[Request]:  # noqa: A002 -- the field's word
        del object, fleet
        self.calls += 1
        await self.may_answer.wait()
        return [request]


def recorded(name: str, **options: Any) -> Recorder:
    controller = Controller(name)
    controller.watch(PODS, **options)
    return Recorder(controller, PODS)


async def started(open_rig: OpenRig, *recorders: Recorder) -> Rig:
    rig = await open_rig("a", resources=(PODS,))
    rig.start_reconciler(*(one.controller for one in recorders))
    rig.start_watcher("a")
    await rig.synced("core/pods")
    for one in recorders:
        await rig.quiet(one.controller.name)
    return rig


async def unacknowledged(rig: Rig, durable: str) -> int:
    async with connected(rig.shared.nats_url, name="test") as bus:
        info = await consumer_info(bus, durable)
    assert info is not None
    return int(info["num_pending"]) + int(info["num_ack_pending"])


async def test_p8_an_object_that_leaves_the_selection_while_its_controller_is_late_is_reported(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is read once the snapshot has the event, else both sides overlook each other."""
    may_apply, apply, waiting = asyncio.Event(), SnapshotWriter.apply, list[str]()

    async def slow_apply(self: SnapshotWriter, events: Sequence[Event], *args: Any) -> Any:
        if any(b'"db"' in bytes(event.object or b"") for event in events):
            waiting.append("")
            await may_apply.wait()
        return await apply(self, events, *args)

    slow_map = SlowMap()
    good, slow = recorded("good"), recorded("slow", map=slow_map, selector="app=web")
    rig = await started(open_rig, good, slow)
    monkeypatch.setattr(SnapshotWriter, "apply", slow_apply)
    rig.clusters["a"].create(PODS, pod("p", labels={"app": "web"}), "default")
    await eventually(lambda: good.of("a", "default", "p"), SOON)
    rig.clusters["a"].patch(PODS, "default", "p", {"metadata": {"labels": {"app": "db"}}})
    await eventually(lambda: waiting, SOON)  # for the projector and the reader
    slow_map.may_answer.set()
    await eventually(lambda: len(slow.runs) == 1, SOON)

    async def is_first_acknowledged() -> bool:
        return await unacknowledged(rig, "good-1") == 1

    await eventually(is_first_acknowledged, SOON)
    may_apply.set()
    await eventually(lambda: len(slow.runs) == 2, SOON)
