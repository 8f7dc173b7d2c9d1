"""A resource that is watched in parts: it is no further than the worst of them (P5, P7, P14)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.clusters.info import ClusterInfo
from fleetbus.errors import NotSynced
from fleetbus.fleet.cluster import Cluster
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.snapshot.records import ResourceRecord, ResourceState, ScopeRecord
from fleetbus_emulator.apiserver import Hang
from fleetbus_proto.events import Heartbeat
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from support.eventually import eventually
from support.rigs.fleet import Rig
from support.rigs.projector import ProjectorRig, fleet_state, heartbeat, now
from support.rows import each_row
from support.stores.snapshot import Source

CONFIG_MAPS = "v1/configmaps"
HOUR = timedelta(hours=1)
STATES = ("unknown", "listing", "degraded", "stale", "synced")


@pytest.fixture
async def state(rig: ProjectorRig) -> FleetState:
    """A state without a projector: the test calls it."""
    await ensure_bucket(rig.bus)
    await rig.connections.writer.ensure_generation()
    fleet_reader = fleet_state(rig)
    rig.provider.tell("eu1")
    await rig.connections.clusters.known()
    await fleet_reader.converge()
    return fleet_reader


def reported(*scopes: str, **fields: Any) -> Heartbeat:
    """A heartbeat that reports pods in these scopes."""
    beat = heartbeat(**fields)
    statuses = [msgspec.structs.replace(beat.resources[0], scope=scope) for scope in scopes]
    return msgspec.structs.replace(beat, resources=statuses)


async def completed(rig: ProjectorRig, state: FleetState, scope: str, epoch: int = 1) -> None:
    source = Source(scope=scope, rank=(5, epoch))
    await state.mark_synced((await rig.snapshot.run_epoch(source, **{f"in-{scope}": 4})).epoch)


def record_of(**states: str) -> ResourceRecord:
    scopes = {
        name: ScopeRecord(state=ResourceState(state), epoch=f"{n} {n}", last_received=now())
        for n, (name, state) in enumerate(states.items(), start=1)
    }
    empty = ResourceRecord(group="core", version="v1", plural="pods", is_declared=True)
    return empty.with_scopes(scopes)


@each_row("worst", STATES)
def test_p14_a_resource_is_as_far_as_the_worst_of_its_scopes(worst: str):
    better = STATES[STATES.index(worst) :]
    for state in better:
        assert record_of(a=state, b=worst, c="synced").state is ResourceState(worst)


def test_p14_marks_and_ranks_of_a_resource_are_the_lowest_of_its_scopes():
    scopes = {
        "a": ScopeRecord(resource_version="99", epoch="98 7", last_received="2026-01-02T00:00:00Z"),
        "b": ScopeRecord(
            resource_version="100", epoch="100 5", last_received="2026-01-01T00:00:00Z"
        ),
    }
    record = record_of(a="synced").with_scopes(scopes)
    assert (record.resource_version, record.epoch, record.epoch_id) == ("99", "98 7", 7)
    assert record.last_received == "2026-01-01T00:00:00Z"
    unlisted = record.with_scopes({**scopes, "c": ScopeRecord()})
    assert (unlisted.resource_version, unlisted.epoch, unlisted.epoch_id) == ("", "", 7)


async def test_p14_the_first_of_three_scopes_does_not_open_the_gate(
    rig: ProjectorRig, state: FleetState
) -> None:
    await completed(rig, state, "a")  # before any heartbeat reports it
    assert await rig.state() is ResourceState.LISTING
    await state.apply_heartbeat(reported("a", "b", "c", state="listing"))
    assert await rig.state() is ResourceState.LISTING
    await completed(rig, state, "b", 2)
    assert await rig.state() is ResourceState.LISTING
    await completed(rig, state, "c", 3)
    await state.apply_heartbeat(reported("a", "b", "c"))
    assert await rig.state() is ResourceState.SYNCED


async def test_p14_a_scope_that_is_added_closes_the_gate_until_it_is_listed(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(reported("a"))
    await completed(rig, state, "a")
    assert await rig.state() is ResourceState.SYNCED
    await state.apply_heartbeat(reported("a", "b", state="listing"))
    assert await rig.state() is ResourceState.LISTING
    await completed(rig, state, "b", 2)
    assert await rig.state() is ResourceState.SYNCED


async def test_p14_two_watchers_with_different_scopes_count_together(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(reported("a", "b"))
    await completed(rig, state, "a")
    await state.apply_heartbeat(reported("a"))
    assert await rig.state() is ResourceState.LISTING
    await completed(rig, state, "b", 2)
    assert await rig.state() is ResourceState.SYNCED


async def test_p17_one_silent_scope_makes_the_resource_stale(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(msgspec.structs.replace(reported("a", "b"), observed_at=now(HOUR)))
    await completed(rig, state, "a")
    await completed(rig, state, "b", 2)
    await state.apply_heartbeat(reported("a"))
    await state.mark_stale(HOUR / 2)
    record = await rig.record()
    assert record is not None
    assert [record.scopes[name].state.value for name in "ab"] == ["synced", "stale"]
    assert record.state is ResourceState.STALE


async def test_w20_only_the_scope_without_a_list_is_requested(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(reported("a", state="listing"))
    await completed(rig, state, "a")
    await state.apply_heartbeat(reported("a"))
    assert await rig.resync_request() is None
    await state.apply_heartbeat(reported("a", "b"))
    assert await rig.resync_request() is not None


async def test_p7_an_empty_list_of_one_namespace_is_held_however_full_the_others_are(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    for scope, epoch in (("a", 1), ("b", 2)):
        rows = {f"{scope}{n}": 50 + n for n in range(30)}
        await rig.publish_epoch(Source(scope=scope, rank=(100, epoch)), **rows)
    await rig.publish(reported("a", "b"))
    await rig.synced()
    await rig.publish_epoch(Source(scope="b", rank=(200, 3)))
    await rig.resync_requested("second list", after=3)
    assert await rig.state() is ResourceState.DEGRADED
    assert not rig.deleted


async def test_p14_of_three_namespaces_one_hangs_and_nothing_is_called_synced(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    rig = await open_rig("a")
    cluster = rig.clusters["a"]
    for name in ("one", "two", "three"):
        cluster.create("v1/namespaces", {"metadata": {"name": name}})
        cluster.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, name)
    hanging = cluster.faults.add(Hang(), verb="list", resource="configmaps", namespace="two")
    rig.start_reconciler()
    namespaces = ["one", "two", "three"]
    rig.start_watcher(
        "a",
        resources=({"resource": "configmaps", "namespaces": namespaces},),
        silence=timedelta(seconds=0.5),
    )

    async def epochs() -> list[str]:
        records = await rig.reader.resources("a")
        return sorted(scope.epoch for record in records for scope in record.scopes.values())

    await eventually(lambda: _is(epochs, 2))
    freshness = (await rig.reader.freshness(["a"], "core/configmaps"))["a"]
    assert freshness.state in (ResourceState.LISTING, ResourceState.UNKNOWN)
    assert not freshness.is_complete
    assert await rig.reader.count("a", "core/configmaps") == 2
    hanging.remove()
    await rig.synced("core/configmaps")
    assert await rig.reader.count("a", "core/configmaps") == 3


async def _is(epochs: Callable[[], Awaitable[list[str]]], complete: int) -> bool:
    return [bool(epoch) for epoch in await epochs()].count(True) == complete


async def test_r1_a4_a_namespace_that_is_not_watched_is_unknown_not_empty(
    rig: ProjectorRig, state: FleetState
) -> None:
    beat = reported("a")
    inside = msgspec.structs.replace(beat.resources[0], namespace="prod")
    await state.apply_heartbeat(msgspec.structs.replace(beat, resources=[inside]))
    await completed(rig, state, "a")
    reader = rig.snapshot.reader
    for namespace, expected in (("prod", "synced"), ("", "synced"), ("stage", "unknown")):
        freshness = (await reader.freshness(["eu1"], "core/pods", namespace=namespace))["eu1"]
        assert (freshness.state, freshness.is_complete) == (expected, expected == "synced")
    info = ClusterInfo(name="eu1", provider="test", config=None)
    cluster = Cluster(info, reader, KubeClient(KubeConfig("{}")))
    assert await cluster.get("v1/pods", "prod", "nobody") is None
    assert len(await cluster.list("v1/pods")) == 1
    with pytest.raises(NotSynced):
        await cluster.get("v1/pods", "stage", "nobody")
    with pytest.raises(NotSynced):
        await cluster.list("v1/pods", "stage")
