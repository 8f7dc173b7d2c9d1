"""Rule D11: what is missing on one cluster is created there, and no other cluster is asked."""

import asyncio
import copy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.reconcile import Request, Result
from fleetbus_distributor.controllers import (
    is_connection_change,
    is_user_change,
    list_requests,
)
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.rounds.distribute import Distribution
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.settled import SettledRounds, facts_of
from fleetbus_emulator.apiserver import Fail
from support.objects import config_map
from support.rigs.distributor import HUB, NOWHERE, Rig, distributor_rig

MAPS = "v1/configmaps"
LONG = timedelta(hours=1)
REQUEST = Request("distributor", HUB, "default", "x")


async def placed(rig: Rig, *names: str) -> None:
    """Objects on t1, t2 and the hub, and a round for all that left nothing to do."""
    rig.restart(settled=LONG)
    templates = [config_map(name) for name in names or ("m",)]
    clusters = [{"name": name} for name in ("t1", "t2", HUB)]
    rig.create(templates=templates, placement={"clusters": clusters})
    await rig.reconcile()
    assert set(rig.states().values()) == {"Applied"}


def asked(rig: Rig, *clusters: str) -> int:
    """Requests about anything that is distributed, or about which cluster answers."""
    paths = [request.path for name in clusters for request in rig.clusters[name].requests]
    return sum("multiclusterresources" not in path and "events" not in path for path in paths)


async def lose(rig: Rig, cluster: str, *names: str) -> None:
    for name in names or ("m",):
        rig.clusters[cluster].delete(MAPS, "default", name)
    assert await rig.repair(cluster) is None


async def test_d11_50_deletions_on_one_cluster_ask_nothing_of_the_others(rig: Rig):
    names = ("a", "b", "c", "d", "e")
    await placed(rig, *names)
    before = asked(rig, "t2")
    for _ in range(10):
        await lose(rig, "t1", *names)
        await rig.reconcile()
        assert all(rig.has("t1", MAPS, name) for name in names)
    assert asked(rig, "t2") == before
    entries = rig.resource()["status"]["intent"]["clusters"]
    uids = {rig.get("t1", MAPS, name)["metadata"]["uid"] for name in names}
    assert set(next(entry for entry in entries if entry["name"] == "t1")["uids"]) == uids


async def test_d11_what_is_missing_on_two_clusters_is_created_in_one_round(rig: Rig):
    await placed(rig)
    await lose(rig, "t1")
    await lose(rig, "t2")
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert rig.has("t2", MAPS, "m")


async def test_d11_a_round_with_nothing_new_asks_no_cluster(rig: Rig):
    await placed(rig)
    before, written = asked(rig, "t1", "t2"), rig.all_writes()
    result = await rig.reconcile()
    assert result == Result(requeue_after=timedelta(minutes=10))
    assert (asked(rig, "t1", "t2"), rig.all_writes()) == (before, written)


async def test_d11_a_name_that_nobody_has_yet_keeps_no_other_cluster_busy(rig: Rig):
    clusters = [{"name": name} for name in ("t1", "t2", "later")]
    rig.restart(settled=LONG)
    rig.create(template=config_map("m"), placement={"clusters": clusters})
    await rig.reconcile()
    before = asked(rig, "t1", "t2")
    result = await rig.reconcile()
    assert result == Result(requeue_after=timedelta(seconds=5))
    assert asked(rig, "t1", "t2") == before
    rig.fleet.rename("t2", "later")  # it joins, as somebody else
    await rig.reconcile()
    assert asked(rig, "t1", "t2") > before


@pytest.mark.parametrize("news", ["edited", "labels", "restored", "confirmed", "elsewhere", "old"])
async def test_d11_whatever_is_new_on_the_hub_takes_a_round_for_all(rig: Rig, news: str):
    await placed(rig)
    backup = copy.deepcopy(rig.resource()["status"])
    match news:
        case "edited":
            rig.edit(policy={"drift": "Report"})
        case "labels":
            rig.fleet.join("t1", region="eu")
        case "restored":
            backup["intent"]["clusters"] = []
            rig.hub.update_status(
                "fleetbus.dev/v1alpha1/multiclusterresources",
                {
                    **rig.resource(),
                    "status": backup,
                },
            )
        case "confirmed":
            rig.annotate("fleetbus.dev/confirm-prune", "some")
        case "elsewhere":
            rig.restart(settled=LONG)  # another process, or this one again
        case _:
            rig.restart(settled=timedelta())
    before = asked(rig, "t2")
    await rig.reconcile()
    assert asked(rig, "t2") > before
    assert set(rig.states().values()) == {"Applied"}


async def test_d11_a_round_that_did_not_end_well_is_followed_by_another_one_for_all(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await placed(rig)
    rig.edit(templates=[config_map("m"), config_map("n")])

    async def dies(*_arguments: Any) -> Any:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(Distribution, "run", dies)
        with pytest.raises(asyncio.CancelledError):
            await rig.reconcile()
    await rig.reconcile()
    assert rig.has("t2", MAPS, "n")


async def test_d11_what_a_round_could_not_create_is_not_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await placed(rig)
    await lose(rig, "t1")
    client = rig.fleet.cluster("t1").live
    really = client.accepted_uid

    async def meanwhile() -> str:  # somebody writes the MultiClusterResource
        monkeypatch.setattr(client, "accepted_uid", really)
        rig.annotate("some", "thing")
        rig.clusters["t1"].faults.add(Fail(500), verb="patch", count=1)
        return await really()

    monkeypatch.setattr(client, "accepted_uid", meanwhile)
    before = asked(rig, "t2")
    assert await rig.reconcile() == Result(requeue_after=timedelta(milliseconds=100))
    assert not rig.has("t1", MAPS, "m")
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert asked(rig, "t2") == before


async def test_d11_what_is_lost_again_during_the_round_is_created_by_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await placed(rig)
    await lose(rig, "t1")
    really, before = MissingObjects.forget, asked(rig, "t2")

    async def late(missing: MissingObjects, owner: str, notes: Any) -> None:
        monkeypatch.setattr(MissingObjects, "forget", really)
        await lose(rig, "t1")
        await really(missing, owner, notes)

    monkeypatch.setattr(MissingObjects, "forget", late)
    await rig.reconcile()
    assert not rig.has("t1", MAPS, "m")
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert asked(rig, "t2") == before


async def test_d11_a_look_of_another_process_is_followed_too(rig: Rig):
    await placed(rig)
    other = rig.another_distributor(settled=LONG)
    await other.reconcile(REQUEST, rig.fleet)
    rig.clusters["t1"].delete(MAPS, "default", "m")
    await other.repair(Request("distributor-targets", "t1", "default", "x"), rig.fleet)
    before = asked(rig, "t2")
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert asked(rig, "t2") == before


async def test_d11_w13_nothing_is_created_where_another_cluster_answers(rig: Rig):
    await placed(rig)
    await lose(rig, "t1")
    uid = rig.clusters["t1"].uid
    rig.clusters["t1"].swap_uid()
    written = len(rig.writes("t1"))
    await rig.reconcile()
    assert len(rig.writes("t1")) == written
    assert rig.states()["t1"] == "Unreachable/NotAccepted"
    assert rig.later["x", "t1"]
    rig.fleet.accepted["t1"] = rig.clusters["t1"].uid  # somebody consents
    assert uid != rig.fleet.accepted["t1"]
    await rig.repair("t1")
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert set(rig.states().values()) == {"Applied"}


async def test_d11_a_cluster_that_hangs_does_not_keep_another_from_what_it_lacks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    await placed(rig)
    await lose(rig, "t1")
    await lose(rig, "t2")
    monkeypatch.setattr(
        "fleetbus_distributor.targets.converge.OBJECT_TIMEOUT", timedelta(seconds=1)
    )
    hung = asyncio.Event()
    really = rig.fleet.cluster("t2").live.apply

    async def hangs(*arguments: Any, **options: Any) -> Any:
        hung.set()
        await asyncio.Event().wait()
        return await really(*arguments, **options)

    monkeypatch.setattr(rig.fleet.cluster("t2").live, "apply", hangs)
    await rig.reconcile()
    assert hung.is_set()
    assert rig.states() == {"t1": "Applied", "t2": "Unreachable/Timeout", HUB: "Applied"}
    assert rig.later["x", "t2"] == timedelta(seconds=5)


async def test_d11_without_the_store_each_round_is_one_for_all():
    async with distributor_rig(redis_url=NOWHERE) as rig:
        await placed(rig)
        rig.clusters["t1"].delete(MAPS, "default", "m")
        await rig.reconcile()
        assert rig.has("t1", MAPS, "m")


async def test_d11_what_was_settled_is_compared_again_when_its_period_is_over(rig: Rig):
    clock = [0.0]
    settled = SettledRounds(timedelta(minutes=10), lambda: clock[0])
    facts = facts_of(Document(rig.fleet.cluster(HUB).live, {"metadata": {}}), (), frozenset())
    settled.record("a", facts, 0, None)
    clock[0] = 599
    settled.record("b", facts, 599, timedelta(seconds=5))
    assert settled.last("a", facts)
    clock[0] = 600
    assert settled.last("a", facts) is None
    last = settled.last("b", facts)
    assert last is not None
    assert last.retry == timedelta(seconds=5)
    assert settled.last("b", replace(facts, generation=9)) is None
    settled.forget("b")
    assert settled.last("b", facts) is None


async def test_d11_a_changed_connection_enqueues_what_is_on_that_cluster(rig: Rig):
    def cluster(connected: str, objects: int) -> dict[str, Any]:
        conditions = [{"type": "Connected", "status": connected}]
        return {"metadata": {}, "status": {"conditions": conditions, "objects": objects}}

    assert is_connection_change(cluster("True", 1), cluster("False", 1))
    assert not is_connection_change(cluster("True", 1), cluster("True", 2))
    assert not is_user_change(cluster("True", 1), cluster("False", 2)), "no round for all"
    await placed(rig)
    rig.create("elsewhere", template=config_map("n"), placement={"clusters": [{"name": "t2"}]})
    await rig.reconcile("elsewhere")
    requests = await list_requests("distributor-targets", rig.fleet, cluster="t1")
    assert requests == [Request("distributor-targets", "t1", "default", "x")]
