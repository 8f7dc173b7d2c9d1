"""A controller whose store is full, or goes back: nothing is lost and nothing old is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request
from fleetbus_devfleet.processes.servers import ValkeyServer
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig, fleet_rig

PODS = "v1/pods"
SOON = timedelta(seconds=20)


class Seen:
    """The runs of a controller of pods; `gate` holds them back before they read."""

    def __init__(self) -> None:
        self.controller = Controller("pods")
        self.controller.watch(PODS)
        self.controller.reconcile(self._look)
        self.gate = asyncio.Event()
        self.gate.set()
        self.started: list[str] = []
        self.labels: list[tuple[str, str | None]] = []
        """The label of each pod as it was read, None for one that is gone."""

    async def _look(self, request: Request, fleet: Fleet) -> None:
        self.started.append(request.name)
        await self.gate.wait()
        obj = await fleet.cluster(request.cluster).get(PODS, request.namespace, request.name)
        self.labels.append((request.name, obj["metadata"]["labels"]["v"] if obj else None))


@pytest.fixture
async def rig(
    store: ValkeyServer, nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Rig]:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(milliseconds=100))
    monkeypatch.setattr(
        "fleetbus.snapshot.offsets.checkpoint.CHECK_EVERY", timedelta(milliseconds=200)
    )
    async with fleet_rig("a", folder=tmp_path, nats_url=nats_url, valkey_url=store.url) as fleet:
        fleet.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=200))
        yield fleet


async def test_p9_p10_a_store_that_is_full_or_goes_back_loses_no_change_and_shows_no_old_one(
    rig: Rig, store: ValkeyServer
) -> None:
    log, cluster = Seen(), rig.clusters["a"]
    for name in ("doomed", "web"):
        cluster.create(PODS, pod(name, labels={"v": "1"}), "default")
    rig.start_reconciler(log.controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("pods")

    log.started.clear()
    with capture_logs() as logs:
        await rig.redis.config_set("maxmemory", "1")
        long = {"labels": {"v": "2"}, "annotations": {"long": "x" * 100}}  # it needs room
        cluster.patch(PODS, "default", "web", {"metadata": long})
        cluster.delete(PODS, "default", "doomed")

        def warned() -> set[str]:
            failed = [line for line in logs if line["event"] == "batch_failed"]
            return {line["durable"] for line in failed if line["error_type"] == "StoreFull"}

        await eventually(lambda: warned() == {"projector", "pods-1"})
    assert log.started == []
    await rig.redis.config_set("maxmemory", "0")
    await eventually(lambda: {("web", "2"), ("doomed", None)} <= set(log.labels), within=SOON)

    await rig.quiet("pods")
    await rig.redis.save()
    log.labels.clear()
    log.started.clear()
    log.gate.clear()
    cluster.patch(PODS, "default", "web", {"metadata": {"labels": {"v": "3"}}})
    await eventually(lambda: log.started == ["web"])
    store.kill()  # while it runs, knowing the change; what is promoted does not know it
    await store.restart()
    await rig.redis.connection_pool.disconnect()
    entry = await rig.reader.get("a", "core/pods", "default", "web")
    assert entry is not None
    assert b'"v":"2"' in entry.body
    log.gate.set()
    await eventually(lambda: ("web", "3") in log.labels, within=SOON)
    assert ("web", "2") not in log.labels
