"""An API server whose etcd was restored from a backup: rule W12."""

from __future__ import annotations

from prometheus_client import REGISTRY

from fleetbus_emulator.apiserver import Fail
from support.eventually import eventually
from support.rigs.watcher import Rig


def alarms() -> float:
    labels = {"cluster": "alpha", "alarm": "etcd_restored"}
    return REGISTRY.get_sample_value("fleetbus_watcher_alarms_total", labels) or 0.0


async def numbers(rig: Rig) -> list[int]:
    return [end.incarnation.number for end in await rig.ends()]


async def has_number_above(rig: Rig, number: int) -> bool:
    return any(each_number > number for each_number in await numbers(rig))


async def is_recorded(rig: Rig, version: str) -> bool:
    record = await rig.checkpoint()
    return record is not None and record["resourceVersion"] == version


def roll_back(rig: Rig, to: str) -> None:
    rig.cluster.roll_back(int(to))


async def test_w12_a_restart_lists_no_object_and_probes_once(rig: Rig):
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
    assert rig.probes() == []  # the list had just returned the version
    async with rig.watching_on():
        rig.write("b")
        await eventually(rig.is_mirrored)
    assert len(rig.requests("list")) == 1
    (probe,) = rig.probes()
    assert "resourceVersion" not in probe.query, "a quorum read"


async def test_w12_each_watch_that_is_opened_again_is_probed_before(rig: Rig):
    async with rig.watching():
        await eventually(lambda: rig.cluster.open_watches == 1)
        rig.cluster.close_watches()
        await eventually(lambda: len(rig.requests("watch")) == 2)
        assert rig.probes()[-1].time <= rig.requests("watch")[-1].time


async def test_w12_a_probe_without_an_answer_is_a_failed_attempt_and_no_relist(rig: Rig):
    async with rig.watching():
        await eventually(lambda: rig.cluster.open_watches == 1)
        rule = rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps", count=3)
        rig.cluster.close_watches()
        await eventually(lambda: rule.hits == 3)
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert len(rig.requests("list")) == 1
        assert len(await rig.ends()) == 1


async def test_w12_an_etcd_that_was_restored_costs_a_new_number_and_a_list_of_everything(rig: Rig):
    rig.write("a")
    backup = rig.truth()["a"]
    rig.write("a", "changed")
    rig.write("b")
    before = alarms()
    async with rig.watching():
        await eventually(rig.checkpoint)
        (first,) = await numbers(rig)
        roll_back(rig, backup)
        rig.write("c")
        await eventually(rig.is_mirrored)
        assert await has_number_above(rig, first)
        assert rig.truth().keys() == {"a", "c"}
    assert alarms() == before + 1


async def test_w12_a_restore_while_the_watcher_is_down_is_noticed_at_start(rig: Rig):
    rig.write("a")
    backup = rig.truth()["a"]
    rig.write("b")
    async with rig.watching():
        await eventually(lambda: is_recorded(rig, rig.truth()["b"]))
        (first,) = await numbers(rig)
    roll_back(rig, backup)
    rig.start()
    await eventually(lambda: has_number_above(rig, first))
    await eventually(rig.is_mirrored)


async def test_w12_w23_two_replicas_that_both_notice_a_restore_end_in_one_number(rig: Rig):
    rig.write("a")
    backup = rig.truth()["a"]
    rig.write("b")
    async with rig.watching(replica="r1"):
        rig.start(replica="r2")
        await eventually(lambda: rig.cluster.open_watches == 2)
        first = max(await numbers(rig))  # both may have listed
        roll_back(rig, backup)
        await eventually(lambda: has_number_above(rig, first))
        await eventually(lambda: rig.cluster.open_watches == 2)
        rig.write("c")
        await eventually(rig.is_mirrored)
        newer = {number for number in await numbers(rig) if number > first}
    assert len(newer) == 1
