"""A run reads its own writes from the snapshot, and nothing older than its trigger."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from fleetbus.errors import ClusterNotFound, NotSynced, SnapshotBehind, StoreError
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.reconcile import Request
from fleetbus.run.current import ObjectRef, Run, Version, running
from fleetbus.snapshot.records import ResourceState
from support.eventually import never
from support.objects import pod
from support.rigs.one_cluster import PODS, Rig, fleet_of
from support.stores.snapshot import Source

REQUEST = Request("copier", "eu1", "prod", "web")


def ref(name: str) -> ObjectRef:
    return ObjectRef("eu1", "core/pods", "prod", name)


def a_run(**options: Any) -> Run:
    return Run(REQUEST, own="core/pods", **options)


async def test_a_run_knows_the_version_of_all_it_has_read(rig: Rig) -> None:
    source = Source(incarnation=7)
    await rig.snapshot.apply(source.added("web", 10), source.added("db", 11))
    run = a_run()
    with running(run):
        await rig.cluster.get(PODS, "prod", "web")
        await rig.cluster.list(PODS)
    assert run.reads == {ref("web"): (7, "10"), ref("db"): (7, "11")}


async def test_a_run_knows_the_deletion_it_has_read(rig: Rig) -> None:
    source = Source(incarnation=7)
    await rig.snapshot.apply(source.added("web", 10), source.deleted("web", 12))
    run = a_run()
    with running(run):
        assert await rig.cluster.get(PODS, "prod", "web") is None
    assert run.reads == {ref("web"): (7, "12")}


async def test_p4_what_no_list_had_is_read_as_of_the_floor(rig: Rig) -> None:
    source = Source(incarnation=7, rank=(40, 1))
    await rig.snapshot.run_epoch(source, db=11)
    run = a_run(trigger=(7, "39"))
    with running(run):
        assert await rig.cluster.get(PODS, "prod", "web") is None
    assert run.reads == {ref("web"): (7, "40")}


@pytest.mark.parametrize(
    ("trigger", "is_behind"), [((7, "10"), False), ((7, "11"), True), ((8, "1"), True)]
)
async def test_p10_an_object_older_than_the_trigger_is_not_shown(
    rig: Rig, trigger: Version, *, is_behind: bool
) -> None:
    await rig.snapshot.apply(Source(incarnation=7).added("web", 10))
    for read in _ways(rig):
        with running(a_run(trigger=trigger)) as run:
            if is_behind:
                with pytest.raises(SnapshotBehind, match="older than"):
                    await read()
                assert not run.reads
            else:
                await read()


def _ways(rig: Rig) -> list[Callable[[], Any]]:
    return [
        lambda: rig.cluster.get(PODS, "prod", "web"),
        lambda: rig.cluster.list(PODS, "prod"),
    ]


async def test_p10_missing_is_not_behind_once_a_list_has_overtaken_the_trigger(rig: Rig) -> None:
    source = Source(incarnation=7, rank=(40, 1))
    await rig.snapshot.apply(source.added("web", 10), source.deleted("web", 12))
    await rig.snapshot.run_epoch(source, db=11)
    with running(a_run(trigger=(7, "40"))):
        assert await rig.cluster.get(PODS, "prod", "web") is None
    with running(a_run(trigger=(7, "41"))), pytest.raises(SnapshotBehind):
        await rig.cluster.get(PODS, "prod", "web")


async def test_r1_a_run_is_refused_what_has_never_been_listed(rig: Rig) -> None:
    with running(a_run()), pytest.raises(NotSynced):
        await rig.cluster.get("v1/configmaps", "prod", "web")


async def test_r5_a_read_waits_until_the_snapshot_shows_the_write_of_the_last_run(
    rig: Rig,
) -> None:
    with running(a_run()) as first:
        created = await rig.cluster.create(PODS, pod("web", namespace="prod"))
    version, uid = created["metadata"]["resourceVersion"], created["metadata"]["uid"]
    second = a_run()
    second.recall(first.note())
    with running(second):
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(way()) for way in _ways(rig)]
            await never(lambda: any(read.done() for read in reads))
            await rig.snapshot.apply(Source().added("web", version, uid=uid))
    assert all(read.result() for read in reads)
    assert second.note() == b""  # nobody need wait for it again


async def test_r5_with_a_watch_that_hangs_a_written_object_is_read_live(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delayed watch: whoever looks for what it made must find it, or it makes it twice."""
    monkeypatch.setattr("fleetbus.fleet.cached_reads.WAIT", timedelta())
    with running(a_run()):
        for name, labels in (("web", {"app": "a"}), ("db", {"app": "b"})):
            await rig.cluster.create(PODS, pod(name, namespace="prod", labels=labels))
        assert await rig.cluster.get(PODS, "prod", "web")
        assert len(await rig.cluster.list(PODS)) == 2
        assert [_name(obj) for obj in await rig.cluster.list(PODS, selector="app=b")] == ["db"]
        assert await rig.cluster.list(PODS, "other") == []


def _name(obj: dict[str, Any]) -> str:
    return obj["metadata"]["name"]


async def test_what_a_uid_owns_is_listed_by_reference_and_by_mark(rig: Rig) -> None:
    reference = {"ownerReferences": [{"uid": "parent", "kind": "Job", "name": "j"}]}
    mark = {"labels": {OWNER_UID_LABEL: "parent"}}
    source = Source()
    await rig.snapshot.apply(
        source.added("a", 10, metadata=reference),
        source.added("b", 11, metadata=mark),
        source.added("c", 12),
    )
    with running(a_run()):
        assert [_name(obj) for obj in await rig.cluster.list(PODS, owner="parent")] == ["a", "b"]
        assert await rig.cluster.list(PODS, owner="somebody") == []


@pytest.mark.parametrize("chosen", [None, "region=eu", ["eu1"]])
async def test_r1_a_list_over_clusters_names_the_cluster_of_each_object(
    rig: Rig, chosen: Any
) -> None:
    source = Source(incarnation=7)
    labels = {"labels": {"app": "a"}}
    await rig.snapshot.apply(source.added("web", 10, metadata=labels), source.added("db", 11))
    with running(a_run()) as run:
        items = await rig.fleet.list(PODS, clusters=chosen, selector="app=a", namespace="prod")
    assert [(item.cluster, _name(item.object)) for item in items] == [("eu1", "web")]
    assert run.reads == {ref("web"): (7, "10")}


async def test_p14_a_list_over_clusters_leaves_out_what_is_not_synced_and_freshness_tells(
    rig: Rig,
) -> None:
    await rig.snapshot.apply(Source().added("web", 10))
    for read in (
        rig.fleet.list("v1/configmaps"),
        rig.fleet.get_all("v1/configmaps", "prod", "web"),
    ):
        with pytest.raises(NotSynced):  # no cluster can tell, so an empty answer would be a lie
            await read
    assert await rig.fleet.list(PODS, clusters="region=us") == []
    with pytest.raises(ClusterNotFound):
        await rig.fleet.list(PODS, clusters=["nowhere"])
    fresh = await rig.fleet.freshness(PODS)
    assert fresh["eu1"].state is ResourceState.SYNCED
    unknown = await rig.cluster.freshness("v1/configmaps")
    assert (unknown.state, unknown.is_complete) == (ResourceState.UNKNOWN, False)


async def test_p10_get_all_does_not_leave_out_the_cluster_that_is_behind(rig: Rig) -> None:
    await rig.snapshot.apply(Source(incarnation=7).added("web", 10))
    with running(a_run(trigger=(7, "11"))), pytest.raises(SnapshotBehind):
        await rig.fleet.get_all(PODS, "prod", "web")


async def test_a_store_that_is_away_is_reported_as_such_by_every_read(
    tmp_path: pathlib.Path,
) -> None:
    nobody = Redis(port=1, retry=Retry(NoBackoff(), 0))  # nothing listens there
    async with fleet_of(nobody, tmp_path) as (fleet, _):
        cluster = fleet.cluster("eu1")
        for read in (
            cluster.get(PODS, "prod", "web"),
            cluster.get_deleted(PODS, "prod", "web"),
            cluster.list(PODS),
            cluster.freshness(PODS),
            fleet.list(PODS),
            fleet.get_all(PODS, "prod", "web"),
            fleet.freshness(PODS),
        ):
            with pytest.raises(StoreError, match="the snapshot cannot be read"):
                await read
    await nobody.aclose()


async def test_p10_the_object_that_woke_the_run_is_read_from_its_event_once(rig: Rig) -> None:
    source = Source(incarnation=7)
    await rig.snapshot.apply(source.added("web", 10), source.modified("web", 12))
    woken_by = {"metadata": {"name": "web", "namespace": "prod", "resourceVersion": "10"}}
    run = a_run(trigger=(7, "10"), offered=msgspec.json.encode(woken_by))
    with running(run):
        assert await rig.cluster.get(PODS, "prod", "web") == woken_by
        later = await rig.cluster.get(PODS, "prod", "web")
    assert later is not None
    assert later["metadata"]["resourceVersion"] == "12"
    assert run.reads == {ref("web"): (7, "10")}, "what it decides by is the first read"
