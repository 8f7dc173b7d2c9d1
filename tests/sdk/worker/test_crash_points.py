"""Look, apply, enqueue, ack: whichever of them fails, the message comes again (rules P9, B7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Lost

from fleetbus.bus.connection import connected
from fleetbus.bus.durables import consumer_info
from fleetbus.controller.controller import Controller
from fleetbus.store.connection import connect
from fleetbus.workqueue.scripts import load
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
SOON = timedelta(seconds=20)


class Breaking(Redis):
    """A client whose connection is lost before or after chosen calls, as long as it is armed."""

    is_armed = False
    hits = 0
    when = ""
    what = ""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        if not Breaking.is_armed or _step(args) != Breaking.what:
            return cast("Any", await super().execute_command(*args, **options))
        if Breaking.when == "after":
            await super().execute_command(*args, **options)
        Breaking.hits += 1
        raise Lost("cut by the test")


def _step(args: tuple[Any, ...]) -> str:
    # A server that has not seen the script yet refuses its digest, and is sent its text.
    if args[:2] in {("EVALSHA", load("add").digest), ("EVAL", load("add").text)}:
        return "enqueue"
    if args[:2] == ("HMGET", SnapshotKeys().guards("a", "core/pods")):
        return "look"
    names = {SnapshotKeys().clusters(0), SnapshotKeys().feed(0)}
    is_apply = args[0] == "EVALSHA" and names <= set(args)
    return "apply" if is_apply else ""


def connect_breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services that start from now on have connections that break when they are armed."""

    async def breaking(url: str) -> Redis:
        plain = await connect(url)
        return Breaking.from_pool(plain.connection_pool)

    monkeypatch.setattr("fleetbus.store.connection.connect", breaking)


def prepare(monkeypatch: pytest.MonkeyPatch, point: str, when: str) -> None:
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))
    for name, value in {"is_armed": False, "hits": 0, "when": when, "what": point}.items():
        monkeypatch.setattr(Breaking, name, value)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["look", "apply", "enqueue"])
async def test_p9_b7_nothing_is_acknowledged_before_it_is_applied_and_enqueued(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    prepare(monkeypatch, point, when)
    rig = await open_rig("a", resources=(PODS,))
    rig.start_reconciler(name="projector")  # it has a connection that stays
    rig.start_watcher("a")
    await rig.synced("core/pods")
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    connect_breaking(monkeypatch)
    rig.start_reconciler(controller, name="one", projector=False)
    await rig.quiet("pods")
    if point == "apply":  # a controller only applies what the projector does not
        await rig.stop("projector")
    Breaking.is_armed = True
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: Breaking.hits >= 1, SOON)
    if when == "before" or point == "look":  # else the second attempt finds it done (P8)
        await eventually(lambda: Breaking.hits >= 2, SOON)
        async with connected(rig.shared.nats_url, name="test") as bus:
            info = await consumer_info(bus, "pods-1")
            assert info is not None
            assert info["num_ack_pending"] > 0
        assert recorder.runs == []
    await rig.stop("one")  # in the middle of it
    Breaking.is_armed = False
    rig.start_reconciler(again(recorder), name="one", projector=False)
    await eventually(lambda: recorder.of("a", "default", "p"), SOON)
    await rig.quiet("pods")
    assert len(recorder.of("a", "default", "p")) <= 2, "one extra run at most"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["apply", "enqueue"])
async def test_p9_b7_a_process_that_is_the_projector_too_loses_nothing_between_apply_and_enqueue(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    prepare(monkeypatch, point, when)
    rig = await open_rig("a", resources=(PODS,))
    connect_breaking(monkeypatch)
    recorder = await in_one_process(rig)
    Breaking.is_armed = True
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: Breaking.hits >= 1, SOON)
    if when == "before":
        assert recorder.runs == []
    await rig.stop("one")  # in the middle of it
    Breaking.is_armed = False
    rig.start_reconciler(again(recorder), name="one")
    await eventually(lambda: recorder.of("a", "default", "p"), SOON)
    await rig.quiet("pods")
    assert len(recorder.of("a", "default", "p")) <= 2, "one extra run at most"
    assert await rig.reader.get("a", "core/pods", "default", "p")


async def test_p10_a_run_in_the_process_of_the_projector_asks_and_waits_for_no_other(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(monkeypatch, "look", "before")
    rig = await open_rig("a", resources=(PODS,))
    connect_breaking(monkeypatch)
    recorder = await in_one_process(rig)
    rig.clusters["a"].create(PODS, pod("p"), "default")
    await eventually(lambda: recorder.of("a", "default", "p"), SOON)
    await rig.quiet("pods")
    Breaking.is_armed = True
    rig.clusters["a"].patch(PODS, "default", "p", {"metadata": {"labels": {"new": "yes"}}})
    await eventually(lambda: len(recorder.of("a", "default", "p")) == 2, SOON)
    await rig.quiet("pods")
    assert Breaking.hits == 0
    (_, second) = recorder.of("a", "default", "p")
    assert second.object is not None
    assert second.object["metadata"]["labels"]["new"] == "yes"


async def in_one_process(rig: Rig) -> Recorder:
    """A controller in the process of the projector, which has nothing to do yet."""
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    rig.start_reconciler(controller, name="one")
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("pods")
    return recorder


@pytest.mark.slow
async def test_p9_the_projector_moves_between_processes_of_a_controller_and_back(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(PODS,))
    recorder = await in_one_process(rig)
    apart = Controller("pods")
    apart.watch(PODS)
    beside = Recorder(apart, PODS)

    async def create_and_run(name: str) -> None:
        rig.clusters["a"].create(PODS, pod(name), "default")
        await eventually(
            lambda: [*recorder.of("a", "default", name), *beside.of("a", "default", name)]
        )
        assert await rig.reader.get("a", "core/pods", "default", name)

    # A process without the projector shares the durable of the one that has it.
    rig.start_reconciler(apart, name="beside", projector=False)
    for number in range(20):
        await create_and_run(f"together-{number}")
    # A rolling update to a projector of its own: it begins before the old process ends.
    rig.start_reconciler(name="projector")
    for number in range(10):
        await create_and_run(f"both-{number}")
    await rig.stop("one")
    for number in range(10):
        await create_and_run(f"apart-{number}")
    # And back.
    rig.start_reconciler(again(recorder), name="one")
    await rig.stop("projector")
    for number in range(10):
        await create_and_run(f"again-{number}")
    await rig.quiet("pods")


def again(recorder: Recorder) -> Controller:
    """The same controller in a new process."""
    controller = Controller("pods")
    controller.watch(PODS)
    recorder.controller = controller
    recorder.__post_init__()
    return controller
