"""The orphan sweep as a whole: it finds and reports, and deletes nothing (rule D7)."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_distributor.orphan_sweep import OrphanSweep
from fleetbus_emulator.apiserver import Fail, Hang
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.objects import config_map
from support.rigs.distributor import Rig
from support.rigs.orphans import MAPS, restored, show, template
from support.stores.snapshot import Source

LONG = timedelta(hours=1)


def sweep_of(rig: Rig, period: timedelta = LONG) -> OrphanSweep:
    return OrphanSweep(rig.fleet, SnapshotReader(rig.redis, SnapshotKeys()), period)


def reported(rig: Rig, name: str = "x") -> dict[str, Any] | None:
    """The condition, if there is one."""
    conditions = rig.resource(name).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == "Orphaned"), None)


def emitted(rig: Rig) -> list[str]:
    return [
        event["message"] for event in rig.hub.list("v1/events") if event["reason"] == "Orphaned"
    ]


async def test_d7_what_a_restored_hub_forgot_is_a_condition_of_its_resource(rig: Rig):
    await restored(rig)
    await show(rig, "t1")
    sweep = sweep_of(rig)
    written = len(rig.writes("t1"))
    assert await sweep.sweep() == []
    assert reported(rig) is None, "what is seen once may be on its way"
    await sweep.sweep()
    condition = reported(rig)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "NotOnRecord")
    assert "1 object(s)" in condition["message"]
    assert "ConfigMap default/b of cluster t1" in condition["message"]
    assert "fleetbus orphans" in condition["message"]
    assert emitted(rig) == [condition["message"]]
    assert len(rig.writes("t1")) == written
    assert rig.has("t1", MAPS, "b")
    assert REGISTRY.get_sample_value("fleetbus_orphans", {"cluster": "t1"}) == 1


async def test_d7_an_orphan_is_reported_once_and_kept_by_rounds_and_other_processes(rig: Rig):
    await restored(rig)
    await show(rig, "t1")
    sweep = sweep_of(rig)
    for _ in range(3):
        await sweep.sweep()
    condition = reported(rig)
    version = rig.resource()["metadata"]["resourceVersion"]
    await sweep_of(rig).sweep()  # of a process that has just started
    assert rig.resource()["metadata"]["resourceVersion"] == version
    assert len(emitted(rig)) == 1
    rig.clusters["t1"].patch(MAPS, "default", "a", {"data": {"k": "changed"}})
    await rig.repair("t1")
    await rig.reconcile()
    assert reported(rig) == condition
    rig.edit(vars={"a": "b"})
    await rig.reconcile()
    assert (reported(rig) or {})["status"] == "True"


@pytest.mark.parametrize("end", ["adopted", "deleted"])
async def test_d7_the_condition_ends_with_the_orphan(rig: Rig, end: str):
    await restored(rig)
    snapshot = await show(rig, "t1")
    sweep = sweep_of(rig)
    await sweep.sweep()
    await sweep.sweep()
    if end == "adopted":
        rig.edit(templates=[template("a"), template("b")])
        await rig.reconcile()
    else:
        gone = rig.get("t1", MAPS, "b")["metadata"]
        rig.clusters["t1"].delete(MAPS, "default", "b")
        version = str(rig.clusters["t1"].resource_version)
        source = Source(cluster="t1", resource="configmaps")
        await snapshot.apply(
            source.event("deleted", "b", version, uid=gone["uid"], namespace="default")
        )
    await sweep.sweep()
    condition = reported(rig)
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("False", "NoOrphans")


async def test_d7_a_successor_of_the_same_name_shows_the_orphans_of_its_predecessor(rig: Rig):
    rig.create(template=template("b"), placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    rig.hub.patch(MULTI_CLUSTER_RESOURCES, "default", "x", {"metadata": {"finalizers": []}})
    rig.delete()
    await show(rig, "t1")
    sweep = sweep_of(rig)
    await sweep.sweep()
    await sweep.sweep()  # there is nothing to report on
    rig.create(template=template("c"), placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    await sweep.sweep()
    assert "ConfigMap default/b" in (reported(rig) or {})["message"]


async def test_d7_a_sweep_asks_no_member_and_the_hub_a_few_times(rig: Rig):
    await restored(rig)
    for n in range(20):
        other = template(f"other{n}")
        rig.create(f"y{n}", template=other, placement={"clusters": [{"name": "t1"}]})
        await rig.reconcile(f"y{n}")
    await show(rig, "t1")
    sweep = sweep_of(rig)
    await sweep.sweep()
    await sweep.sweep()
    rig.clusters["t1"].faults.add(Hang())
    members = {name: len(rig.clusters[name].requests) for name in ("t1", "t2")}
    count = len(rig.hub.requests)
    assert len(await sweep.sweep()) == 1
    assert {name: len(rig.clusters[name].requests) for name in members} == members
    since = [request.path.rpartition("/")[2] for request in list(rig.hub.requests)[count:]]
    assert Counter(since)["multiclusterresources"] == 3
    assert set(since) == {"multiclusterresources", "inventorychunks", "kube-system"}
    assert len(since) <= 9


@asynccontextmanager
async def running(sweep: OrphanSweep) -> AsyncGenerator[asyncio.Task[None]]:
    task = asyncio.create_task(sweep.run(), name="orphans")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_d7_the_loop_outlives_a_hub_that_refuses_and_clusters_that_hang(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await restored(rig)
    await show(rig, "t1")
    written = len(rig.writes("t1"))
    for name in ("t1", "t2"):
        rig.clusters[name].faults.add(Hang())
    refused = rig.hub.faults.add(Fail(500), verb="list", count=2)
    broken = rig.fleet.clusters
    calls: list[int] = []

    def clusters() -> Any:  # once, something that nobody expected
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("unexpected")
        return broken()

    monkeypatch.setattr(rig.fleet, "clusters", clusters)
    async with running(sweep_of(rig, timedelta(milliseconds=20))) as task:
        await eventually(lambda: reported(rig))
        assert not task.done()
    assert refused.hits == 2
    assert len(rig.writes("t1")) == written
    assert rig.has("t1", MAPS, "b")


async def test_d7_orphan_policy_and_a_suspended_cluster_say_how_to_get_out(rig: Rig):
    placement = {"clusters": [{"name": "t1"}]}
    rig.create(template=config_map(), placement=placement, policy={"deletion": "Orphan"})
    await rig.reconcile()
    rig.fleet.suspend("t1")
    rig.delete()
    await rig.reconcile()
    entry = rig.entry("t1")
    assert (entry["state"], entry["reason"]) == ("Waiting", "ClusterSuspended")
    assert "spec.suspend to false" in entry["message"]
    assert "fleetbus unjoin t1" in entry["message"]
    rig.fleet.suspend("t1", suspended=False)
    await rig.until(lambda: not rig.exists())
    assert rig.has("t1", MAPS, "m")
