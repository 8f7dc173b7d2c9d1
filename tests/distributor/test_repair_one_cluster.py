"""Rule D11: what happens on one cluster is handled for that cluster alone; D15: cheap rendering."""

import asyncio
import time
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.clusters.info import ClusterInfo
from fleetbus.reconcile import Result
from fleetbus_distributor.controllers import is_user_change
from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.draft import Renderer
from fleetbus_distributor.render.spec import Spec, read_spec
from fleetbus_distributor.render.template import Context
from fleetbus_distributor.render.work import Work
from fleetbus_emulator.apiserver import Fail
from support.objects import config_map
from support.rigs.distributor import HUB, Rig

MAPS = "v1/configmaps"
EVERYWHERE = {"clusters": [{"name": name} for name in ("t1", "t2", HUB)]}


async def placed(rig: Rig, **spec: Any) -> None:
    rig.create(template=config_map(), placement=EVERYWHERE, **spec)
    await rig.reconcile()
    assert set(rig.states().values()) == {"Applied"}


def asked(rig: Rig, *clusters: str) -> int:
    return sum(len(rig.clusters[name].requests) for name in clusters)


async def test_d11_drift_on_one_cluster_asks_nothing_of_the_others(rig: Rig):
    await placed(rig)
    before, written = asked(rig, "t2"), rig.all_writes()
    for n in range(5):
        change = {"metadata": {"annotations": {"foreign": str(n)}}}
        rig.clusters["t1"].patch(MAPS, "default", "m", change)
        assert await rig.repair("t1") is None
    assert asked(rig, "t2") == before
    foreign = len(
        [write for write in rig.writes("t1") if not write.field_manager.startswith("fleetbus")]
    )
    assert rig.all_writes() - written <= foreign, "what is not ours is left, and not reported"
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "changed"}})
    result = await rig.repair("t1")
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "v"}
    assert asked(rig, "t2") == before
    assert result is not None, "the spec may have been edited while it was applied"
    assert await rig.repair("t1") is None


@pytest.mark.parametrize("namespaces", [True, False])
async def test_d11_what_is_missing_is_created_by_the_round_for_all_alone(
    rig: Rig, namespaces: bool
):
    await placed(rig, policy={"createNamespaces": namespaces})
    before, written = asked(rig, "t2"), rig.all_writes()
    rig.clusters["t1"].delete(MAPS, "default", "m")
    assert await rig.repair("t1") is None
    assert not rig.has("t1", MAPS, "m")
    assert asked(rig, "t2") == before
    assert rig.all_writes() - written <= 1, "only the deletion"
    assert rig.later == {("x", ""): timedelta()}
    await rig.reconcile()
    uid = rig.get("t1", MAPS, "m")["metadata"]["uid"]
    entries = rig.resource()["status"]["intent"]["clusters"]
    assert next(entry for entry in entries if entry["name"] == "t1")["uids"] == [uid]


async def test_d11_what_is_missing_beside_a_conflict_is_created_too(rig: Rig):
    rig.create(templates=[config_map("a"), config_map("b")], placement=EVERYWHERE)
    await rig.reconcile()
    rig.clusters["t1"].delete(MAPS, "default", "a")
    rig.clusters["t1"].delete(MAPS, "default", "b")
    rig.clusters["t1"].create(MAPS, config_map("b"))  # a stranger's
    await rig.repair("t1")
    assert rig.later == {("x", ""): timedelta()}


async def test_d11_an_object_that_is_deleted_meanwhile_does_not_come_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await placed(rig)
    rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "changed"}})
    client = rig.fleet.cluster("t1").live
    really_apply = client.apply

    async def apply(*arguments: Any, **options: Any) -> Any:
        rig.clusters["t1"].delete(MAPS, "default", "m")  # as the round for all may, just now
        return await really_apply(*arguments, **options)

    monkeypatch.setattr(client, "apply", apply)
    await rig.repair("t1")
    assert not rig.has("t1", MAPS, "m")


async def test_d11_an_outdated_spec_replaces_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    def immutable(value: str) -> dict[str, Any]:
        return config_map() | {"immutable": True, "data": {"k": value}}

    recreate = {"recreate": True}
    rig.create(template=immutable("old"), placement=EVERYWHERE, policy=recreate)
    await rig.reconcile()
    client = rig.fleet.cluster("t1").live
    really_identify = client.accepted_uid
    uids: list[str] = []

    async def identify() -> str:  # after the spec was read, before the object is
        monkeypatch.setattr(client, "accepted_uid", really_identify)
        rig.edit(template=immutable("new"))
        await rig.until(lambda: set(rig.states().values()) == {"Applied"})
        uids.append(rig.get("t1", MAPS, "m")["metadata"]["uid"])
        return await really_identify()

    monkeypatch.setattr(client, "accepted_uid", identify)
    await rig.repair("t1")
    assert [rig.get("t1", MAPS, "m")["metadata"]["uid"]] == uids
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "new"}
    assert rig.later["x", ""] == timedelta(), "the round for all decides it"


async def test_d11_the_entry_and_the_summary_follow_the_one_cluster(rig: Rig):
    await placed(rig)
    fault = rig.clusters["t1"].faults.add(Fail(500), verb="get", resource="configmaps")
    result = await rig.repair("t1")
    assert fault.hits
    assert result is not None
    assert rig.states() == {"t1": "Failed/ServerError", "t2": "Applied", HUB: "Applied"}
    assert rig.condition()["reason"] == "Failed"
    assert rig.resource()["status"]["summary"]["applied"] == 2
    rig.clusters["t1"].faults.clear()
    await rig.repair("t1")
    assert set(rig.states().values()) == {"Applied"}
    assert rig.condition()["status"] == "True"


async def test_d11_a_failing_cluster_is_looked_at_again_alone(rig: Rig):
    rig.clusters["t1"].faults.add(Fail(500), verb="patch", count=1)
    rig.create(template=config_map(), placement=EVERYWHERE)
    result = await rig.reconcile()
    assert result is not None
    assert result.requeue_after == timedelta(minutes=10)
    assert list(rig.later) == [("x", "t1")]
    before = asked(rig, "t2")
    await rig.repair("t1")
    assert asked(rig, "t2") == before
    assert rig.later["x", ""] == timedelta(), "it was never created"
    await rig.reconcile()
    assert rig.states()["t1"] == "Applied"


@pytest.mark.parametrize(
    "concern", ["edited", "deleted", "elsewhere", "unknown", "gone", "suspended"]
)
async def test_d11_what_concerns_all_clusters_is_left_to_the_round_for_all(rig: Rig, concern: str):
    rig.create(template=config_map(), placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    cluster = {"elsewhere": "t2", "unknown": "nowhere"}.get(concern, "t1")
    if concern == "edited":
        rig.edit(template=config_map("other"))
    if concern in ("deleted", "gone"):
        rig.delete()
    if concern == "gone":
        await rig.until(lambda: not rig.exists())
    if concern == "suspended":
        rig.edit(policy={"suspend": True})
        await rig.reconcile()
        rig.clusters["t1"].delete(MAPS, "default", "m")
    before, written = asked(rig, "t1", "t2"), rig.all_writes()
    result = await rig.repair(cluster)
    assert result == (Result(requeue_after=timedelta(seconds=1)) if concern == "edited" else None)
    assert asked(rig, "t1", "t2") == before
    assert rig.all_writes() == written


async def test_d11_nothing_is_applied_that_is_not_on_record_and_nothing_pruned(rig: Rig):
    for name in ("t1", "t2"):
        rig.fleet.join(name, region="eu")
    config = config_map("m-${cluster.labels.region}")
    rig.create(template=config, placement={"clusters": [{"name": "t1"}, {"name": "t2"}]})
    await rig.reconcile()
    for name in ("t1", "t2"):
        rig.fleet.join(name, region="us")
    written = rig.all_writes()
    assert await rig.repair("t1") is None
    assert rig.all_writes() == written
    await rig.reconcile()  # what is new is applied, what was there is held
    assert rig.states() == {"t1": "Held/DeletionFuse", "t2": "Held/DeletionFuse"}
    rig.clusters["t1"].patch(MAPS, "default", "m-us", {"data": {"k": "changed"}})
    await rig.repair("t1")
    assert rig.get("t1", MAPS, "m-us")["data"] == {"k": "v"}
    assert rig.has("t1", MAPS, "m-eu")
    assert rig.states()["t1"] == "Held/DeletionFuse"
    assert rig.plan_hash()


def test_d11_our_own_status_enqueues_nothing():
    resource = {"metadata": {"uid": "u", "generation": 1}, "status": {}}
    assert not is_user_change(resource, {**resource, "status": {"observedGeneration": 1}})
    assert is_user_change(None, resource)
    assert is_user_change(resource, None)
    for change in ({"generation": 2}, {"annotations": {"a": "b"}}, {"deletionTimestamp": "t"}):
        assert is_user_change(resource, {"metadata": resource["metadata"] | change})


def many(templates: int, **spec: Any) -> Spec:
    maps = [config_map(f"m{n}") for n in range(templates)]
    for config in maps:
        config["data"] = {"k": "x" * 500, "c": "${cluster.name}"}
    return read_spec({"spec": {"templates": maps, "placement": {"clusterSelector": {}}, **spec}})


def clusters(count: int, **labels: str) -> list[ClusterInfo]:
    return [
        ClusterInfo(name=f"c{n}", labels=labels, hub=False, provider="test", config=None)
        for n in range(count)
    ]


async def test_d15_rendering_does_not_block_the_event_loop():
    # In time of the processor: what others compute meanwhile on a busy machine does not count.
    longest, at = 0.0, time.process_time()
    drawing = asyncio.create_task(Renderer().draft(many(200), clusters(40), "hub"))
    while not drawing.done():
        await asyncio.sleep(0)
        now = time.process_time()
        longest, at = max(longest, now - at), now
    started, spec = time.process_time(), many(200)
    for info in clusters(40):
        render_for(spec, Context(info.name, info.labels))
    assert longest < (time.process_time() - started) / 2, "what it costs on the loop"
    assert len((await drawing).objects) == 40


async def test_d15_what_was_rendered_is_remembered_by_what_it_depends_on(
    monkeypatch: pytest.MonkeyPatch,
):
    calls: list[str] = []

    def note(spec: Spec, context: Context, work: Work) -> tuple[list[dict[str, Any]], list[str]]:
        calls.append(context.cluster)
        return render_for(spec, context, work)

    monkeypatch.setattr("fleetbus_distributor.render.draft.render_for", note)
    drafts = Renderer()
    first = await drafts.draft(many(2), clusters(2), "hub")
    again = await drafts.draft(many(2), clusters(2), "hub")
    assert calls == ["c0", "c1"]
    assert (again.objects, again.wanted, again.revisions) == (
        first.objects,
        first.wanted,
        first.revisions,
    )
    again.objects["c0"].clear()
    assert len((await drafts.draft(many(2), clusters(1), "hub")).objects["c0"]) == 2
    await drafts.draft(many(2), clusters(1, region="eu"), "hub")
    await drafts.draft(many(2, vars={"a": 1}), clusters(1), "hub")
    assert calls == ["c0", "c1", "c0", "c0"]


async def test_d15_what_is_remembered_is_bounded():
    drafts = Renderer(cache_size=3_000)
    for n in range(20):
        drawn = await drafts.draft(many(1, vars={"n": n}), clusters(1), "hub")
        assert drawn.objects["c0"][0]["data"]["c"] == "c0"
    assert 0 < drafts.size <= 3_000


async def test_d15_what_is_remembered_takes_no_more_memory_than_is_counted():
    drafts = Renderer()
    await drafts.draft(many(1, vars={"n": -1}), clusters(10), "hub")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for n in range(100):
            await drafts.draft(many(1, vars={"n": n}), clusters(10), "hub")
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1.5 * drafts.size


async def test_d15_what_nobody_uses_any_more_is_forgotten():
    drafts = Renderer(kept=timedelta(0))
    for n in range(20):
        await drafts.draft(many(1, vars={"n": n}), clusters(1), "hub")
    assert drafts.size < 3_000


async def test_r10_rounds_for_single_clusters_in_conflict_write_no_status(rig: Rig):
    for name in ("t1", "t2"):
        rig.clusters[name].create(MAPS, {"metadata": {"name": "m"}}, "default")
    placement = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
    rig.create(template=config_map(), placement=placement)
    for _ in range(3):
        await rig.reconcile()
    before = len(rig.writes(HUB))
    for name in ("t1", "t2"):
        await rig.repair(name)
        await rig.reconcile()
    assert len(rig.writes(HUB)) == before
