"""W11, A4, D11: a hanging API server is reported within 30 s, and its return noticed within 10 s.

`FLEETBUS_TEST_FULL=1` runs it with the timers as they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.connection.backoff import BackoffPolicy
from fleetbus.reconcile import Request
from fleetbus.snapshot.records import Freshness
from fleetbus_emulator.apiserver import Partition
from fleetbus_watcher.timing import USUAL, WatcherTiming
from support.eventually import eventually
from support.full import FULL
from support.rigs.fleet import Rig
from support.rigs.scenario import MAP_KEY, MAPS, Scenario, scenario

OpenRig = Callable[..., Awaitable[Rig]]
REPORTED = timedelta(seconds=30 if FULL else 15)
NOTICED = timedelta(seconds=10)
OUTAGE = timedelta(seconds=60 if FULL else 2)
"""Duration of the outage after it was reported, so that pauses between retries have grown."""


SOON = WatcherTiming(
    probes=BackoffPolicy(first=timedelta(milliseconds=100), cap=timedelta(milliseconds=150)),
    quiet=timedelta(seconds=1),
    answers_within=timedelta(milliseconds=400),
)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    if not FULL:
        monkeypatch.setattr("fleetbus.kube.client.CONNECT_TIMEOUT", timedelta(milliseconds=400))
        monkeypatch.setattr(
            "fleetbus.kube.connection.breaker.PROBE_EVERY", timedelta(milliseconds=500)
        )


class Copier:
    """A controller that reads the hanging cluster, and when it could."""

    def __init__(self) -> None:
        self.controller = Controller("copier", timeout=timedelta(seconds=20 if FULL else 1))
        self.controller.watch(MAPS, clusters=["a"])
        self.controller.reconcile(self._copy)
        self.read_at = 0.0

    async def _copy(self, _request: Request, fleet: Fleet) -> None:
        await fleet.cluster("b").live.get(MAPS, "default", "x")
        self.read_at = time.monotonic()


async def freshness(story: Scenario) -> Freshness:
    return (await story.rig.reader.freshness(["b"], MAP_KEY))["b"]


async def is_complete(story: Scenario, *, complete: bool) -> bool:
    return (await freshness(story)).is_complete is complete


@pytest.mark.full  # test_api_server_liveness of the watcher has it
@pytest.mark.timeout(300 if FULL else 90)  # an outage has to last
async def test_w11_d11_a_hanging_api_server_is_reported_and_its_return_is_noticed(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", "b")
    rig.watcher_timing = USUAL if FULL else SOON
    async with scenario(rig) as story:
        copier = Copier()
        providers: dict[str, Any] = {"type": "kubeconfig", "paths": [str(rig.kubeconfig)]}
        story.use(providers)
        story.start_reconciler()
        rig.start_reconciler(copier.controller, name="copier", projector=False)
        await story.start_pool(resources=(MAPS,))
        await story.synced("a", "b")
        story.write("a", "first")
        await eventually(lambda: copier.read_at)

        await rig.servers.partition("b", Partition.HANG)
        story.write("b", "meanwhile")
        begun = time.monotonic()
        story.write("a", "second")
        await eventually(lambda: is_complete(story, complete=False), REPORTED)
        reported = await freshness(story)
        assert reported.age is not None
        assert (
            abs(reported.age.total_seconds() - (time.monotonic() - begun))
            < REPORTED.total_seconds() / 2
        )
        await asyncio.sleep(OUTAGE.total_seconds())  # the outage lasts
        assert (await freshness(story)).reason == reported.reason

        copier.read_at = 0
        await rig.servers.heal("b")
        healed = time.monotonic()
        await eventually(lambda: is_complete(story, complete=True), NOTICED)
        await eventually(lambda: copier.read_at, NOTICED)
        assert copier.read_at - healed < NOTICED.total_seconds()
        await eventually(lambda: holds(story), NOTICED)


async def holds(story: Scenario) -> bool:
    return "meanwhile" in await story.rows("b")
