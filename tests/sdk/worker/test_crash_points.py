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


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["look", "apply", "enqueue"])
async def test_p9_b7_nothing_is_acknowledged_before_it_is_applied_and_enqueued(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    async def breaking(url: str) -> Redis:
        plain = await connect(url)
        return Breaking.from_pool(plain.connection_pool)

    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))
    for name, value in {"is_armed": False, "hits": 0, "when": when, "what": point}.items():
        monkeypatch.setattr(Breaking, name, value)
    rig = await open_rig("a", resources=(PODS,))
    rig.start_reconciler(name="projector")  # it has a connection that stays
    rig.start_watcher("a")
    await rig.synced("core/pods")
    controller = Controller("pods")
    controller.watch(PODS)
    recorder = Recorder(controller, PODS)
    monkeypatch.setattr("fleetbus.store.connection.connect", breaking)
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


def again(recorder: Recorder) -> Controller:
    """The same controller in a new process."""
    controller = Controller("pods")
    controller.watch(PODS)
    recorder.controller = controller
    recorder.__post_init__()
    return controller
