"""Rule D11: progress is written to the status at most once in a while, and what is left at last."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.reconcile import Request
from fleetbus_emulator.apiserver import Fail
from fleetbus_proto import keys
from support.objects import config_map
from support.rigs.distributor import HUB, NOWHERE, Rig, distributor_rig

MAPS = "v1/configmaps"
LONG = timedelta(hours=1)


@pytest.fixture
async def rig(valkey_url: str) -> AsyncGenerator[Rig]:
    async with distributor_rig(redis_url=valkey_url) as rig:
        rig.pace = LONG  # a test lets it pass
        rig.restart(status_after=LONG, settled=LONG)
        yield rig


async def placed(rig: Rig) -> None:
    """One object on three clusters whose drift is reported, and time to write again."""
    clusters = [{"name": name} for name in ("t1", "t2", HUB)]
    rig.create(template=config_map(), placement={"clusters": clusters}, policy={"drift": "Report"})
    await rig.reconcile()
    await let_time_pass(rig)


async def let_time_pass(rig: Rig) -> None:
    """Until the status may be written again."""
    assert await rig.redis.delete(keys.status_written(rig.resource()["metadata"]["uid"]))


def drift(rig: Rig, cluster: str, value: str) -> None:
    rig.clusters[cluster].patch(MAPS, "default", "m", {"data": {"k": value}})


def writes(rig: Rig) -> int:
    return sum(write.path.endswith("/x/status") for write in rig.writes(HUB))


def states(rig: Rig) -> dict[str, str]:
    return {name: state.partition("/")[0] for name, state in rig.states().items()}


async def test_d11_the_first_change_is_written_at_once_and_the_next_ones_together(rig: Rig):
    await placed(rig)
    before = writes(rig)
    drift(rig, "t1", "other")
    await rig.repair("t1")
    assert states(rig)["t1"] == "Drifted"
    rig.later.clear()
    for number in range(5):
        drift(rig, "t2", str(number))
        await rig.repair("t2")
    rig.clusters["t1"].delete(MAPS, "default", "m")
    await rig.repair("t1")
    assert writes(rig) == before + 1
    assert timedelta() < rig.later["x", ""] <= LONG
    result = await rig.reconcile()  # too early
    assert writes(rig) == before + 1
    assert result is not None
    assert result.requeue_after is not None
    assert timedelta() < result.requeue_after <= LONG
    await let_time_pass(rig)
    await rig.reconcile()
    assert states(rig) == {"t1": "Drifted", "t2": "Drifted", HUB: "Applied"}
    assert "deleted" in rig.entry("t1")["message"]
    assert writes(rig) == before + 2
    await rig.reconcile()
    assert writes(rig) == before + 2


async def test_d11_the_last_state_is_written_by_another_process_if_this_one_dies(rig: Rig):
    await placed(rig)
    for cluster in ("t1", "t2"):
        drift(rig, cluster, "other")
        await rig.repair(cluster)
    assert states(rig)["t2"] == "Applied"
    await let_time_pass(rig)
    rig.restart(settled=LONG)
    await rig.reconcile()
    assert states(rig) == {"t1": "Drifted", "t2": "Drifted", HUB: "Applied"}


async def test_d11_two_processes_share_the_pace(rig: Rig):
    await placed(rig)
    before, other = writes(rig), rig.another_distributor(settled=LONG)
    drift(rig, "t1", "other")
    drift(rig, "t2", "other")
    await rig.repair("t1")
    request = Request("distributor-targets", "t2", "default", "x")
    await other.repair(request, rig.fleet)
    assert writes(rig) == before + 1


async def test_d11_repairs_do_not_write_while_a_round_is_about_to(rig: Rig):
    """Else they might always come first, and what was postponed would never be written."""
    await placed(rig)
    for cluster in ("t1", "t2"):
        drift(rig, cluster, "other")
        await rig.repair(cluster)
    before = writes(rig)
    await let_time_pass(rig)
    rig.clusters["t1"].delete(MAPS, "default", "m")
    await rig.repair("t1")
    assert writes(rig) == before
    await rig.reconcile()
    assert "deleted" in rig.entry("t1")["message"]
    assert states(rig)["t2"] == "Drifted"


async def test_d11_lost_copies_are_created_at_once_and_reported_later(rig: Rig):
    await placed(rig)
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    before = writes(rig)
    for _ in range(3):
        rig.clusters["t1"].delete(MAPS, "default", "m")
        await rig.repair("t1")
        await rig.reconcile()
        assert rig.has("t1", MAPS, "m")
    assert writes(rig) == before
    await let_time_pass(rig)
    await rig.reconcile()
    assert writes(rig) == before + 1
    uid = rig.get("t1", MAPS, "m")["metadata"]["uid"]
    entries = rig.resource()["status"]["intent"]["clusters"]
    assert next(entry for entry in entries if entry["name"] == "t1")["uids"] == [uid]


async def test_d2_the_intent_and_the_end_of_a_round_wait_for_nothing(rig: Rig):
    await placed(rig)
    drift(rig, "t1", "other")
    await rig.repair("t1")
    before = writes(rig)
    recorded: list[Any] = []
    apply = rig.fleet.cluster("t2").live.apply

    async def noted(*arguments: Any, **options: Any) -> Any:
        recorded.append(rig.resource()["status"]["intent"]["objects"])
        return await apply(*arguments, **options)

    rig.fleet.cluster("t2").live.apply = noted  # type: ignore[method-assign]
    rig.edit(template=None, templates=[config_map(), config_map("n")])
    await rig.reconcile()
    assert [len(inventory) for inventory in recorded] == [2]
    assert writes(rig) == before + 2  # before the first apply, and at the end
    assert rig.resource()["status"]["observedGeneration"] == 2


async def test_d11_an_event_is_written_once_although_its_status_comes_later(rig: Rig):
    await placed(rig)
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    rig.clusters["t2"].faults.add(Fail(500), verb="patch", count=3)
    drift(rig, "t2", "other")
    rig.events.clear()
    await rig.repair("t2")
    assert [event.event for event in rig.events] == []
    await let_time_pass(rig)
    await rig.reconcile()
    assert [(event.event, event.cluster) for event in rig.events] == [("failed", "t2")]
    events = [rig.hub.get("v1/events", *name) or {} for name in rig.hub.names("v1/events")]
    messages = [event["reason"] for event in events if event["reason"] == "UpdateFailed"]
    assert messages == ["UpdateFailed"]


async def test_d11_a_correction_is_announced_at_once_and_is_in_the_status_later(rig: Rig):
    await placed(rig)
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    rig.events.clear()
    for cluster in ("t1", "t2"):
        drift(rig, cluster, "other")
        await rig.repair(cluster)
    events = [(event.event, event.cluster) for event in rig.events]
    assert events == [("corrected", "t1"), ("corrected", "t2")]
    await rig.repair("t2")
    await let_time_pass(rig)
    await rig.reconcile()
    assert "default/m" in rig.entry("t2")["lastCorrection"]


async def test_d11_without_the_store_every_change_is_written():
    async with distributor_rig(redis_url=NOWHERE) as rig:
        clusters = [{"name": name} for name in ("t1", "t2")]
        rig.create(
            template=config_map(), placement={"clusters": clusters}, policy={"drift": "Report"}
        )
        await rig.reconcile()
        for cluster in ("t1", "t2"):
            drift(rig, cluster, "other")
            await rig.repair(cluster)
        assert states(rig) == {"t1": "Drifted", "t2": "Drifted"}


async def test_d26_d27_a_correction_is_announced_at_once_and_in_the_next_status(rig: Rig):
    await placed(rig)
    rig.edit(policy={"drift": "Correct"})
    await rig.reconcile()
    rig.events.clear()
    drift(rig, "t1", "other")
    await rig.repair("t1")
    assert [(event.cluster, event.event.value) for event in rig.events] == [("t1", "corrected")]
    rig.clusters["t2"].faults.add(Fail(500), verb="patch", count=20)
    drift(rig, "t2", "other")
    await rig.repair("t2")
    assert len(rig.events) == 1, "the status does not show it yet"
    assert "lastCorrection" not in rig.entry("t1")
    await let_time_pass(rig)
    await rig.reconcile()
    assert rig.entry("t1")["lastCorrection"].startswith("ConfigMap default/m: .data.k was changed")
    assert "lastCorrection" not in rig.entry("t2")
    assert [(event.cluster, event.event.value) for event in rig.events[1:]] == [("t2", "failed")]
