"""A full enqueue leaves out what the controller has seen and reconciled (rules P8, P12)."""

from __future__ import annotations

import asyncio

from prometheus_client import REGISTRY
from redis.asyncio import Redis

from fleetbus.clusters.registry import Clusters
from fleetbus.intake.matching import Reason
from support.rigs.intake import (
    DB_APP,
    EU1,
    PODS,
    PODS_KEY,
    WEB_APP,
    IntakeRig,
    Provider,
    Seen,
    is_changed,
    seen,
    start,
    to_ref,
)
from support.stores.snapshot import Source


def skipped(source: str) -> float:
    labels = {"controller": "copier", "source": source}
    return REGISTRY.get_sample_value("fleetbus_skipped_reconciles_total", labels) or 0.0


async def test_p12_a_restart_enqueues_only_what_changed_of_2000_objects(rig: IntakeRig) -> None:
    await start(rig)
    events = [EU1.listed(f"p{i}", i + 1) for i in range(2000)]
    for at in range(0, 2000, 500):
        await rig.tell(*events[at : at + 500])
    assert len(rig.runs) == 2000
    again = rig.beside()
    before = skipped("full_enqueue")
    assert await again.enqueue_all(Reason.RESYNC) == []
    assert await again.enqueue_all(Reason.GAP) == []
    assert skipped("full_enqueue") == before + 4000
    await rig.snapshot.apply(EU1.modified("p7", 3000), EU1.deleted("p8", 3001))
    changed = await again.enqueue_all(Reason.RESYNC)
    assert sorted(changed) == [seen("p7", 3000), seen("p8")]


async def test_p12_what_only_the_record_still_names_is_reconciled_once(
    rig: IntakeRig, redis: Redis
) -> None:
    rig.controller.watch(PODS, map=to_ref)
    await start(rig)
    await rig.tell(*(EU1.listed(name, 5, metadata={"ref": f"r-{name}"}) for name in "ab"))
    await rig.snapshot.run_epoch(Source(cluster="eu1", rank=(9, 9)), b=5)
    # The deletion, the tombstone and the stream that delivered it are gone.
    gone = await rig.snapshot.reader.versions("eu1", PODS_KEY, [("prod", "a")])
    assert gone
    for kind in ("guards", "bodies", "order"):
        key = f"fleetbus:{{fleet:0}}:{kind}:eu1:{PODS_KEY}"
        await (redis.zrem(key, "prod/a") if kind == "order" else redis.hdel(key, "prod/a"))
    runs = await rig.enqueue_all(Reason.RESYNC)
    assert {run.place for run in runs} == {"eu1/prod/a", "us1/x/r-a"}


async def test_p8_other_code_proves_nothing_for_this_one(rig: IntakeRig) -> None:
    await start(rig, predicate=is_changed)
    await rig.tell(EU1.added("a", 1), EU1.added("b", 2))
    assert await rig.enqueue_all(Reason.GAP) == []
    assert sorted(await rig.enqueue_all(Reason.NEW_CODE)) == [seen("a", 1), seen("b", 2)]


async def test_a_narrowed_watch_lets_what_it_had_go(rig: IntakeRig) -> None:
    await start(rig)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP), EU1.added("b", 2, metadata=DB_APP))
    later = rig.beside(lambda controller: controller.watch(PODS, selector="app=web"))
    assert await later.enqueue_all(Reason.RESYNC) == [seen("b", 2, left=True)]
    assert await later.enqueue_all(Reason.RESYNC) == []


async def test_t12_a_changed_label_of_a_cluster_lets_its_objects_come_and_go(
    rig: IntakeRig, provider: Provider
) -> None:
    await start(rig, clusters="region=eu")
    await rig.tell(EU1.added("a", 1), Source(cluster="us1").added("b", 2))
    assert rig.runs == [seen("a", 1)]
    changed = asyncio.Event()
    rig.clusters.on_change(changed.set)
    provider.regions.put_nowait({"eu1": "asia", "us1": "eu"})
    await changed.wait()
    runs = [run for name in ("eu1", "us1") for run in await rig.enqueue_all(Reason.RESYNC, name)]
    assert runs == [seen("a", 1, left=True), Seen("us1/prod/b", "2", left=False)]
    assert await rig.enqueue_all(Reason.RESYNC) == []


async def test_before_the_clusters_are_reported_no_object_leaves(
    rig: IntakeRig, redis: Redis
) -> None:
    await start(rig, clusters="region=eu")
    await rig.tell(EU1.added("a", 1))
    early = IntakeRig(redis, Clusters([Provider()]), rig.controller)
    early.start()
    assert await early.tell(EU1.modified("a", 2)) == []
    assert await rig.enqueue_all(Reason.RESYNC) == [seen("a", 2)]


async def test_what_was_seen_of_a_cluster_that_left_or_of_an_unwatched_resource_is_forgotten(
    rig: IntakeRig, redis: Redis
) -> None:
    rig.controller.watch("v1/services")
    await start(rig)
    services = Source(cluster="eu1", resource="services")
    await rig.tell(EU1.added("a", 1), services.added("s", 2), Source(cluster="us1").added("b", 3))
    assert len(await rig.record.resources()) == 3
    await rig.snapshot.forget_cluster("us1")
    later = rig.beside(lambda controller: controller.watch(PODS))
    await later.full.tidy()
    assert await rig.record.resources() == [("eu1", PODS_KEY)]
    assert len(await redis.keys("fleetbus:{q:copier}:record:*")) == 1
