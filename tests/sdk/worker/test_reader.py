"""One reader for the controllers of a process; what is wrong with one concerns it alone (P8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import connected
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.reader_groups import registered_controllers
from fleetbus.controller.controller import Controller
from fleetbus.reconcile import Request
from fleetbus.snapshot.applied_here import AppliedHere
from fleetbus.worker.reader import Reader
from fleetbus_proto.events import Event
from fleetbus_proto.keys import queue
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig
from support.rigs.fleet_fixtures import with_quick_checks

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
MAPS = "v1/configmaps"
SOON = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))


@pytest.fixture
def open_rig(open_rig: OpenRig) -> OpenRig:
    return with_quick_checks(open_rig)


def recorded(name: str, resource: str = PODS, **options: Any) -> Recorder:
    controller = Controller(name)
    controller.watch(resource, **options)
    return Recorder(controller, resource)


async def started(open_rig: OpenRig, *recorders: Recorder) -> Rig:
    """A fleet with one process, and nothing to do."""
    rig = await open_rig("a", resources=(PODS, MAPS))
    rig.start_reconciler(*(one.controller for one in recorders))
    rig.start_watcher("a")
    await rig.synced("core/pods", "core/configmaps")
    for one in recorders:
        await rig.quiet(one.controller.name)
    return rig


async def consumers(rig: Rig) -> list[str]:
    async with connected(rig.shared.nats_url, name="test") as bus:
        found = await bus.nc.jetstream().consumers_info(STREAM)
    return sorted(info.name for info in found)


async def test_two_controllers_of_a_process_get_each_change_from_one_durable(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str] = []
    looked_up: list[str] = []
    handle, ensure = Reader._handle, AppliedHere.ensure  # pyright: ignore[reportPrivateUsage]

    async def counted(self: Reader, deliveries: Sequence[Delivery]) -> None:
        received.extend(d.message.name for d in deliveries if isinstance(d.message, Event))
        await handle(self, deliveries)

    async def looked(self: AppliedHere, events: Sequence[Event]) -> list[Event]:
        looked_up.extend(event.name for event in events)
        return await ensure(self, events)

    monkeypatch.setattr(Reader, "_handle", counted)
    monkeypatch.setattr(AppliedHere, "ensure", looked)
    first, second, other = recorded("alpha"), recorded("beta"), recorded("gamma", MAPS)
    rig = await started(open_rig, first, second, other)
    received.clear()
    looked_up.clear()
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: first.of("a", "default", "p") and second.of("a", "default", "p"), SOON)
    assert await consumers(rig) == ["alpha-1", "projector"]
    assert (received, looked_up) == (["p"], ["p"])
    for name in ("alpha", "beta", "gamma"):
        await rig.quiet(name)
    assert len(first.runs) == len(second.runs) == 1
    assert other.runs == []
    consumed = {
        name: REGISTRY.get_sample_value("fleetbus_events_consumed_total", {"consumer": name})
        for name in ("alpha", "beta", "gamma")
    }
    assert consumed["alpha"] == consumed["beta"] == 1
    assert consumed["gamma"] == 0


async def test_p8_a_predicate_that_raises_concerns_its_controller_alone(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.FIRST_RESYNC", timedelta(milliseconds=100))
    is_broken = [True]

    def fragile(old: Any, new: Any) -> bool:
        del old, new
        if is_broken[0]:
            raise ValueError("as planned")
        return True

    good, bad = recorded("good"), recorded("bad", predicate=fragile)
    rig = await started(open_rig, good, bad)
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: good.of("a", "default", "p"), SOON)
    await eventually(lambda: is_through(rig))
    assert bad.runs == []
    is_broken[0] = False
    await eventually(lambda: bad.of("a", "default", "p"), SOON)
    assert len(good.runs) == 1


async def is_through(rig: Rig) -> bool:
    async with connected(rig.shared.nats_url, name="test") as bus:
        [name] = [name for name in await consumers(rig) if name != "projector"]
        info = await consumer_info(bus, name)
    return info is not None and (info["num_pending"], info["num_ack_pending"]) == (0, 0)


async def test_p9_a_queue_that_refuses_holds_up_its_controller_alone(open_rig: OpenRig) -> None:
    good, bad = recorded("good"), recorded("bad")
    rig = await started(open_rig, good, bad)
    place = queue("bad", "record:a:core/pods")
    await rig.redis.set(place, "of another program")
    for number in range(10):
        rig.clusters["a"].create(PODS, pod(f"p{number}"), "default")
        name = f"p{number}"
        await eventually(lambda name=name: good.of("a", "default", name), SOON)
    assert bad.runs == []
    assert not await is_through(rig), "nothing is acknowledged for the other"
    await rig.redis.delete(place)
    await eventually(lambda: len(bad.keys()) == 10, SOON)
    await eventually(lambda: is_through(rig), SOON)
    assert len(good.runs) == 10, "what comes again is known (P8)"


async def test_b18_what_cannot_be_read_is_recorded_once_and_goes(open_rig: OpenRig) -> None:
    first, second = recorded("first"), recorded("second")
    rig = await started(open_rig, first, second)
    async with connected(rig.shared.nats_url, name="test") as bus:
        await bus.nc.jetstream().publish("fleetbus.events.a.core.pods.default.p.added", b"\xff")
    await eventually(lambda: is_through(rig))
    rejected = [
        REGISTRY.get_sample_value(
            "fleetbus_rejected_messages_total", {"consumer": name, "cluster": "a"}
        )
        for name in ("first", "second")
    ]
    assert sum(count or 0 for count in rejected) == 1


@pytest.mark.slow
async def test_a_controller_that_is_added_enqueues_what_is_known_and_no_other_does(
    open_rig: OpenRig,
) -> None:
    first, second = recorded("first"), recorded("second")
    rig = await open_rig("a", resources=(PODS, MAPS))
    rig.start_reconciler(first.controller)
    rig.clusters["a"].create(PODS, pod("p"), "default")
    rig.start_watcher("a")
    await eventually(lambda: first.of("a", "default", "p"), SOON)
    await rig.quiet("first")
    await asyncio.sleep(0.3)  # a checkpoint is written
    await rig.stop_reconciler()
    rig.clusters["a"].create(PODS, pod("q"), "default")
    rig.start_reconciler(first.controller, second.controller)
    await eventually(lambda: len(second.keys()) == 2, SOON)
    await eventually(lambda: len(first.keys()) == 2, SOON)
    await rig.quiet("first")
    assert len(first.runs) == 2
    async with connected(rig.shared.nats_url, name="test") as bus:
        await eventually(lambda: _is_only(rig, "first-2"), SOON)
        assert await registered_controllers(bus) == ["first", "second"]


async def _is_only(rig: Rig, durable: str) -> bool:
    return await consumers(rig) == [durable, "projector"]


# --- a map that is slow ---------------------------------------------------------------------------


class SlowMap:
    """A map that does not answer before it may, and what it was asked about."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.names: list[str] = []

    async def __call__(self, object: Any, request: Request, fleet: Any) -> list[Request]:  # noqa: A002 -- the field's word
        del object, fleet
        self.names.append(request.name)
        await self.may_answer.wait()
        return [request]


def create_pods(rig: Rig, *numbers: int) -> list[str]:
    for number in numbers:
        rig.clusters["a"].create(PODS, pod(f"p{number}"), "default")
    return [f"p{number}" for number in numbers]


async def test_p8_a_map_that_is_slow_holds_up_its_controller_alone(open_rig: OpenRig) -> None:
    slow_map = SlowMap()
    good, slow = recorded("good"), recorded("slow", map=slow_map)
    rig = await started(open_rig, good, slow)
    for number in range(6):
        [name] = create_pods(rig, number)
        await eventually(lambda name=name: good.of("a", "default", name), SOON)
    assert slow_map.names == ["p0"], "one after the other within a cluster"
    assert slow.runs == []
    assert not await is_through(rig), "nothing is acknowledged before every controller has it"
    slow_map.may_answer.set()
    await eventually(lambda: len(slow.keys()) == 6, SOON)
    await eventually(lambda: is_through(rig), SOON)
    assert len(good.runs) == 6
    assert sorted(slow_map.names) == [f"p{number}" for number in range(6)]


@pytest.mark.slow
async def test_p12_a_controller_that_is_far_behind_holds_up_no_other_and_catches_up(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.reader.LATE", 8)
    monkeypatch.setattr("fleetbus.worker.backlog.GRACE", timedelta(milliseconds=100))
    slow_map = SlowMap()
    good, slow = recorded("good"), recorded("slow", map=slow_map)
    rig = await started(open_rig, good, slow)
    for number in range(20):
        [name] = create_pods(rig, number)
        await eventually(lambda name=name: good.of("a", "default", name), SOON)
    rig.clusters["a"].delete(PODS, "default", "p0")
    rig.clusters["a"].delete(PODS, "default", "p19")
    await eventually(lambda: good.of("a", "default", "p19")[1:], SOON)
    assert slow.runs == []
    slow_map.may_answer.set()
    await eventually(lambda: {f"p{n}" for n in range(1, 19)} <= run_names(slow), SOON)
    await eventually(lambda: is_through(rig), SOON)
    await eventually(lambda: "p0" in run_names(slow), SOON)


async def test_p12_one_that_is_late_for_a_moment_skips_nothing(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.reader.LATE", 4)
    monkeypatch.setattr("fleetbus.worker.backlog.GRACE", SOON)
    slow_map = SlowMap()
    good, slow = recorded("good"), recorded("slow", map=slow_map)
    rig = await started(open_rig, good, slow)
    names = create_pods(rig, *range(8))
    await eventually(lambda: slow_map.names)
    slow_map.may_answer.set()
    await eventually(lambda: run_names(good) == run_names(slow) == set(names), SOON)
    await eventually(lambda: is_through(rig), SOON)
    [checkpoint] = await rig.redis.keys(queue("slow", "checkpoint:*"))
    assert not await rig.redis.hget(checkpoint, "breaks")  # type: ignore[misc]


def run_names(recorder: Recorder) -> set[str]:
    return {run.request.name for run in recorder.runs}


async def test_p9_a_process_that_ends_while_a_map_is_slow_loses_nothing(open_rig: OpenRig) -> None:
    slow_map = SlowMap()
    good, slow = recorded("good"), recorded("slow", map=slow_map)
    rig = await started(open_rig, good, slow)
    names = create_pods(rig, *range(5))
    await eventually(lambda: run_names(good) == set(names), SOON)
    await rig.stop_reconciler()
    assert slow.runs == []
    slow_map.may_answer.set()
    rig.start_reconciler(good.controller, slow.controller)
    await eventually(lambda: run_names(slow) == set(names), SOON)
    await eventually(lambda: is_through(rig), SOON)
