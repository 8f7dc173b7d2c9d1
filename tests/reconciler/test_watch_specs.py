"""Watch specs reach the bucket; a suspended cluster is stale (P14, P17, S7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from datetime import date, timedelta
from typing import Any

import pytest

from fleetbus.bus.jetstream import call_jetstream, ensure_bucket
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import BusError
from fleetbus.snapshot.records import ResourceState
from fleetbus.watchers.spec import WatchSpec, read_spec
from fleetbus_proto.keys import KV_BUCKET
from fleetbus_reconciler.fleet_status.watch_specs import WatchSpecWriter
from support.eventually import eventually
from support.rigs.projector import PODS, ProjectorRig, heartbeat
from support.stores.snapshot import Source


def info(name: str = "eu1", **fields: Any) -> ClusterInfo:
    return ClusterInfo(name=name, provider="test", config=None, **fields)


async def spec(rig: ProjectorRig, cluster: str = "eu1") -> WatchSpec | None:
    with contextlib.suppress(BusError):
        return await read_spec(rig.connections.kv, cluster)
    return None


@pytest.fixture
async def specs(rig: ProjectorRig) -> AsyncGenerator[WatchSpecWriter]:
    await ensure_bucket(rig.bus)
    writer = WatchSpecWriter(clusters=rig.connections.clusters, bus=rig.bus, kv=rig.connections.kv)
    task = asyncio.create_task(writer.run())
    yield writer
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.usefixtures("specs")
async def test_s7_what_a_provider_says_is_written_for_the_watchers_of_that_cluster_alone(
    rig: ProjectorRig,
):
    woken: list[str] = []

    async def note(message: Any) -> None:
        woken.append(message.subject)

    await rig.bus.nc.subscribe("fleetbus.control.*", cb=note)
    await rig.bus.nc.flush()
    narrowed = {"resource": "pods", "namespaces": ["prod"]}
    rig.provider.tell_infos(info(resources=("v1/nodes", narrowed)), info("us1", suspended=True))
    await eventually(lambda: len(woken) == 2)
    assert await spec(rig) == WatchSpec(resources=("v1/nodes", narrowed))
    assert await spec(rig, "us1") == WatchSpec(suspended=True)
    rig.provider.tell_infos(info(resources=("v1/nodes", narrowed)), info("us1", deny=()))
    await eventually(lambda: len(woken) == 3)
    assert woken[-1] == "fleetbus.control.us1"
    assert await spec(rig, "us1") == WatchSpec(deny=())


@pytest.mark.usefixtures("specs")
async def test_a_cluster_that_left_has_no_spec_any_more_and_a_new_one_has_an_empty_spec(
    rig: ProjectorRig,
):
    rig.provider.tell_infos(info(suspended=True), info("us1"))
    await eventually(lambda: _is(rig, WatchSpec(suspended=True)))
    await eventually(lambda: _is(rig, WatchSpec(), "us1"))
    rig.provider.tell_infos(info("us1"))
    await eventually(lambda: _is(rig, None))


@pytest.mark.usefixtures("specs")
async def test_a_spec_that_json_cannot_hold_is_written_as_a_string(rig: ProjectorRig):
    rig.provider.tell_infos(info(resources=({None: {1}}, {"resource": date(2026, 1, 2)})))
    await eventually(lambda: spec(rig))
    current = await spec(rig)
    assert current is not None
    assert current.resources == ("{None: {1}}", {"resource": "2026-01-02"})


async def test_specs_are_written_again_into_a_new_bucket(
    rig: ProjectorRig, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_INTERVAL", "_RETRY"):
        monkeypatch.setattr(
            f"fleetbus_reconciler.fleet_status.watch_specs.{name}", timedelta(seconds=0.05)
        )
    await ensure_bucket(rig.bus)
    specs = WatchSpecWriter(clusters=rig.connections.clusters, bus=rig.bus, kv=rig.connections.kv)
    task = asyncio.create_task(specs.run())
    rig.provider.tell_infos(info(suspended=True))
    await eventually(lambda: _is(rig, WatchSpec(suspended=True)))
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await ensure_bucket(rig.bus)
    await eventually(lambda: _is(rig, WatchSpec(suspended=True)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _is(rig: ProjectorRig, watch_spec: WatchSpec | None, cluster: str = "eu1") -> bool:
    return await spec(rig, cluster) == watch_spec


# --- suspended ----------------------------------------------------------------------------------


async def _has(rig: ProjectorRig, state: str, reason: str) -> bool:
    record = await rig.record()
    return record is not None and (record.state, record.reason) == (state, reason)


async def test_p14_a_suspended_cluster_keeps_its_rows_as_stale_whatever_is_reported(
    rig: ProjectorRig,
):
    await rig.started("eu1")
    await rig.publish_epoch(Source(rank=(100, 1)), a=50)
    await rig.publish(heartbeat())
    await rig.synced()
    rig.provider.tell_infos(info(suspended=True))
    await eventually(lambda: _has(rig, "stale", "Suspended"))
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert (cluster.connected, cluster.reason) == (False, "Suspended")
    # A watcher that has not read it yet, with a list and one that the store lacks.
    await rig.publish(heartbeat(resource_version="200"))
    await rig.publish_epoch(Source(rank=(200, 2)), a=50)

    async def is_swept() -> bool:
        record = await rig.record()
        return record is not None and record.epoch == "200 2"

    await eventually(is_swept)
    assert await _has(rig, "stale", "Suspended")
    assert await rig.snapshot.names() == ["a"]
    freshness = (await rig.snapshot.reader.freshness(["eu1"], PODS))["eu1"]
    assert not freshness.is_complete
    assert freshness.reason == "nothing is watched while it is suspended"
    assert await rig.resync_request() is None

    rig.provider.tell_infos(info())

    async def is_reported_again() -> bool:
        await rig.publish(heartbeat())  # again: one may come before the provider's word
        return await _has(rig, ResourceState.SYNCED, "")

    await eventually(is_reported_again)


async def test_p14_what_was_never_listed_before_a_suspension_stays_unknown(rig: ProjectorRig):
    await rig.started("eu1")
    await rig.publish(heartbeat(state="listing"))
    await eventually(rig.record)
    rig.provider.tell_infos(info(suspended=True))
    await eventually(lambda: _has(rig, "unknown", "Suspended"))
