"""B8 with real watchers and a real projector: a clock is wrong by days, and then it is not.

A clock is that of the code which claims numbers, or which refuses them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from fleetbus.errors import NotFound
from fleetbus.process import clock
from fleetbus_emulator.apiserver import Expire
from fleetbus_reconciler.timing import ReconcilerTiming
from fleetbus_watcher.timing import WatcherTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
CLAIMS = ("fleetbus_watcher.incarnation.now_ms", "fleetbus_watcher.follow.resource_watcher.now_ms")
REFUSES = tuple(
    f"{module}.now_ms"
    for module in (
        "fleetbus.bus.consume",
        "fleetbus_reconciler.projector.clock_skew",
        "fleetbus_reconciler.fleet_status.resync_requests",
    )
)


@pytest.fixture
async def rig(open_rig: OpenRig) -> Rig:
    rig = await open_rig("a", resources=(PODS,))
    quick = timedelta(milliseconds=200)
    rig.watcher_timing = WatcherTiming(resync_requests=quick)
    rig.reconciler_timing = ReconcilerTiming(clock_checks=quick, resync_repeated=quick)
    return rig


def shift(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], days: int) -> None:
    for name in names:
        monkeypatch.setattr(name, lambda: clock.now_ms() + days * 86_400_000)


def refused() -> float:
    labels = {"consumer": "projector", "cluster": "a"}
    return REGISTRY.get_sample_value("fleetbus_rejected_messages_total", labels) or 0.0


async def has_pod(rig: Rig, name: str) -> bool:
    try:
        return await rig.reader.get("a", "core/pods", "default", name) is not None
    except NotFound:
        return False


async def says(rig: Rig, text: str) -> bool:
    record = await rig.reader.cluster("a")
    return record is not None and text in record.why_silent(datetime.now(UTC))


async def test_b8_a_new_clusters_watcher_two_days_ahead_is_named_and_heals_with_its_clock(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.clusters["a"].create(PODS, pod("p1"), "default")
    shift(monkeypatch, CLAIMS, 2)
    rig.start_reconciler()
    rig.start_watcher(
        "a", heartbeat_busy=timedelta(seconds=0.2), heartbeat_idle=timedelta(seconds=0.5)
    )
    await eventually(lambda: says(rig, "its watcher's clock is 48 h ahead"))
    assert not await has_pod(rig, "p1")
    shift(monkeypatch, CLAIMS, 0)
    await eventually(lambda: has_pod(rig, "p1"))
    await rig.synced("core/pods")


async def test_b8_a_clock_that_was_ahead_only_while_a_list_ran_loses_no_change(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.start_reconciler()
    rig.start_watcher("a")
    await rig.synced("core/pods")
    shift(monkeypatch, CLAIMS, 2)
    rig.clusters["a"].faults.add(Expire("open"), verb="watch", count=1)
    rig.clusters["a"].close_watches()
    rig.clusters["a"].create(PODS, pod("p1"), "default")
    await eventually(lambda: says(rig, "its watcher's clock is 48 h ahead"))
    assert not await has_pod(rig, "p1")
    shift(monkeypatch, CLAIMS, 0)
    await eventually(lambda: has_pod(rig, "p1"))


@pytest.mark.parametrize("restarts", [False, True])
async def test_b8_a_projector_whose_clock_was_behind_asks_for_what_it_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    rig.start_reconciler()
    rig.start_watcher("a")
    await rig.synced("core/pods")
    shift(monkeypatch, REFUSES, -2)
    before = refused()
    rig.clusters["a"].create(PODS, pod("p1"), "default")
    await eventually(lambda: says(rig, "its watcher's clock is 48 h ahead"))
    # Its change, and the list that was asked for at once: the object, and the end.
    await eventually(lambda: refused() >= before + 3)
    assert not await has_pod(rig, "p1")
    if restarts:
        await rig.stop_reconciler()
    shift(monkeypatch, REFUSES, 0)
    if restarts:
        rig.start_reconciler()
    await eventually(lambda: has_pod(rig, "p1"))
