"""Events on the bus report changes, once each, and no value (rule D27)."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from fleetbus_distributor.hub.rollout_state import (
    Phase,
    RevisionRef,
    RolloutState,
    WavePhase,
    WaveStatus,
)
from fleetbus_distributor.rollout.changes import changes_of
from fleetbus_emulator.apiserver import Fail
from fleetbus_proto.distribution import DistributionEvent, encode_distribution_event
from fleetbus_proto.subjects import DistributionVerb
from support.objects import config_map
from support.rigs.distributor import CONFIG_MAP, Rig
from support.rigs.rollout import on_v1, rounds, vote

MAPS = "v1/configmaps"
BOTH = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "s", "namespace": "default"},
    "data": {"key": "aHVudGVyMmh1bnRlcjI="},
}


def reported(rig: Rig) -> list[tuple[str, str, str]]:
    """Cluster, event and reason of the events since the last call."""
    entries = [(event.cluster, event.event.value, event.reason) for event in rig.events]
    rig.events.clear()
    return entries


def only(rig: Rig, verb: str) -> DistributionEvent:
    (event,) = [candidate for candidate in rig.events if candidate.event == verb]
    return event


async def test_d27_a_change_is_reported_once_and_a_settled_fleet_tells_nothing(rig: Rig):
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    first = rig.events[0]
    assert (first.namespace, first.name, first.generation) == ("default", "x", 1)
    assert first.uid == rig.resource()["metadata"]["uid"]
    assert [affected.object for affected in first.objects] == ["ConfigMap default/m"]
    assert reported(rig) == [("t1", "applied", "Applied"), ("t2", "applied", "Applied")]
    for _ in range(2):
        await rig.reconcile()
        await rig.repair("t1")
    assert reported(rig) == []
    rig.edit(template={**CONFIG_MAP, "data": {"k": "other"}})
    await rig.reconcile()
    assert reported(rig) == [("t1", "applied", "Applied"), ("t2", "applied", "Applied")]
    rig.delete()
    await rig.until(lambda: not rig.exists())
    assert sorted(reported(rig)) == [("t1", "deleted", ""), ("t2", "deleted", "")]


async def test_d27_waiting_conflict_drift_and_unreachable_name_what_and_who(rig: Rig):
    waits = copy.deepcopy(CONFIG_MAP)
    waits["metadata"]["namespace"] = "shop"
    rig.create("waits", template=waits, placement={"clusters": [{"name": "t1"}]})
    for _ in range(2):
        await rig.reconcile("waits")
    assert only(rig, "waiting").objects[0].object == "ConfigMap shop/m"
    assert reported(rig) == [("t1", "waiting", "NamespaceMissing")]

    rig.create(template=CONFIG_MAP, placement=BOTH, policy={"drift": "Report"})
    await rig.reconcile()
    rig.events.clear()
    patched = rig.clusters["t1"].patch(MAPS, "default", "m", {"data": {"k": "x"}}, manager="oncall")
    when = next(
        entry["time"]
        for entry in patched["metadata"]["managedFields"]
        if entry["manager"] == "oncall"
    )
    await rig.repair("t1")
    await rig.reconcile()
    (affected,) = only(rig, "drifted").objects
    assert (affected.field, affected.manager, affected.time) == (".data.k", "oncall", when)
    assert reported(rig) == [("t1", "drifted", "Drifted")]

    rig.edit(template={**CONFIG_MAP, "data": {"k": "edited"}})
    await rig.reconcile()
    await rig.reconcile()
    (affected,) = only(rig, "conflict").objects
    assert (affected.field, affected.manager) == (".data.k", "oncall")
    assert reported(rig) == [("t1", "conflict", "FieldConflict"), ("t2", "applied", "Applied")]

    rig.fleet.suspend("t1")
    rig.clusters["t2"].swap_uid()
    await rig.reconcile()
    await rig.reconcile()
    assert reported(rig) == [
        ("t1", "waiting", "ClusterSuspended"),
        ("t2", "unreachable", "NotAccepted"),
    ]


async def test_d27_a_hold_and_a_refused_spec_are_reported_for_the_whole_fleet(rig: Rig):
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="a")
    selector = {"clusterSelector": {"matchLabels": {"zone": "a"}}}
    rig.create(template=CONFIG_MAP, placement=selector)
    await rig.reconcile()
    rig.events.clear()
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="b")
    for _ in range(2):
        await rig.reconcile()
    hold = next(event for event in rig.events if not event.cluster)
    assert rig.plan_hash() in hold.message
    assert [event for _, event, _ in reported(rig)] == ["held"] * 3
    rig.edit(policy={"suspend": True})
    for _ in range(2):
        await rig.reconcile()
    assert reported(rig) == [("", "waiting", "Suspended")]
    rig.edit(policy={"deletion": "Orphan"}, placement={"clusters": [{"name": "t1"}]})
    await rig.reconcile()
    assert ("t2", "released", "Orphaned") in reported(rig)
    await rig.reconcile()
    assert rig.resource()["status"]["leftBehind"]
    assert reported(rig) == []


async def test_d27_no_event_has_a_value_of_a_secret(rig: Rig):
    rig.create(template=SECRET, placement=BOTH)
    await rig.reconcile()
    rig.clusters["t1"].patch(
        "v1/secrets", "default", "s", {"data": {"key": "bGVha2VkbGVhaw=="}}, manager="oncall"
    )
    await rig.reconcile()
    quoted = Fail(403, message="denied: Invalid value: hunter3hunter3")
    rig.clusters["t1"].faults.add(quoted, verb="patch", resource="secrets")
    rig.edit(template={**SECRET, "data": {"key": "aHVudGVyM2h1bnRlcjM="}})
    await rig.reconcile()
    rig.delete()
    await rig.reconcile()
    verbs = {event.event.value for event in rig.events}
    assert verbs >= {"applied", "corrected", "failed", "deleted"}
    text = b"\n".join(map(encode_distribution_event, rig.events)).decode()
    assert only(rig, "corrected").objects[0].field == ".data.key"
    for value in ("hunter", "aHVudGVy", "bGVha2Vk", "leaked"):
        assert value not in text


async def test_d27_many_objects_are_counted_not_listed(rig: Rig):
    def named(number: int) -> dict[str, Any]:
        return {**CONFIG_MAP, "metadata": {"name": f"m{number}", "namespace": "default"}}

    rig.create(templates=[named(number) for number in range(25)], placement=BOTH)
    await rig.reconcile()
    assert (len(rig.events[0].objects), rig.events[0].more) == (20, 5)


# --- rollouts


def rolled(phase: Phase, *waves: WavePhase, number: int = 1) -> RolloutState:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    statuses = [
        WaveStatus(
            f"w{place}",
            ("t1",),
            wave,
            message="gate health: late" if wave is WavePhase.FAILED else "",
            opened_at=None if wave is WavePhase.WAITING else at,
        )
        for place, wave in enumerate(waves)
    ]
    ref = RevisionRef(number, f"x-{number}")
    return RolloutState(revision=ref, phase=phase, message="why", waves=tuple(statuses))


def verbs(old: RolloutState | None, new: RolloutState, *, is_undo: bool = False) -> list[str]:
    changes = changes_of(old, new, is_undo=is_undo)
    return [" ".join(filter(None, (change.verb.value, change.wave))) for change in changes]


def test_d27_the_changes_of_a_rollout_are_reported_in_order():
    waiting, opened, passed, failed = WavePhase
    begun = rolled(Phase.PROGRESSING, opened, waiting)
    assert verbs(None, begun) == ["wave-open w0"]
    assert verbs(begun, begun) == []
    second = rolled(Phase.PROGRESSING, passed, opened)
    assert verbs(begun, second) == ["wave-passed w0", "wave-open w1"]
    complete = rolled(Phase.COMPLETE, passed, passed)
    assert verbs(begun, complete) == [
        "wave-passed w0",
        "wave-open w1",
        "wave-passed w1",
        "complete",
    ]
    assert verbs(complete, complete) == []
    broken = rolled(Phase.FAILED, passed, failed)
    (change,) = changes_of(second, broken)
    assert (change.verb, change.message) == (DistributionVerb.WAVE_FAILED, "gate health: late")
    paused = rolled(Phase.PAUSED, passed, opened)
    assert verbs(second, paused) == ["paused"]
    assert verbs(paused, second) == ["resumed"]
    assert verbs(second, rolled(Phase.HELD, passed, opened)) == ["held"]
    again = rolled(Phase.PROGRESSING, opened, waiting, number=3)
    assert verbs(broken, again, is_undo=True) == ["undone", "wave-open w0"]
    nothing = RolloutState(
        revision=RevisionRef(1, "x-1"),
        phase=Phase.COMPLETE,
        waves=(WaveStatus("all", ("t1",), passed),),
    )
    assert verbs(None, nothing) == [], "everything was there before the first rollout"


async def test_d27_a_rollout_is_reported_wave_by_wave_and_its_undo(rig: Rig):
    await on_v1(rig)
    rig.events.clear()
    gates = [{"name": "tests"}]
    rollout = {"waves": [{"name": "canary", "clusters": [{"name": "t1"}], "gates": gates}]}
    rig.edit(template=config_map(k="v2"), rollout=rollout)
    await rounds(rig)
    assert of_rollout(rig) == ["2 wave-open canary"]
    await rounds(rig)
    assert of_rollout(rig) == []
    vote(rig, "canary", "tests", vote="fail", reason="p99 is 3 s")
    await rounds(rig)
    assert "p99 is 3 s" in only(rig, "wave-failed").message
    assert of_rollout(rig) == ["2 wave-failed canary"]
    rig.edit(template=config_map(k="v1"))
    await rounds(rig)
    vote(rig, "canary", "tests", vote="pass")
    await rounds(rig)
    assert of_rollout(rig) == [
        "3 undone",
        "3 wave-open canary",
        "3 wave-passed canary",
        "3 wave-open remaining",
        "3 wave-passed remaining",
        "3 complete",
    ]


def of_rollout(rig: Rig) -> list[str]:
    """Revision, event and wave of the events of no cluster."""
    events = [event for event in rig.events if not event.cluster]
    rig.events.clear()
    return [
        " ".join(filter(None, (str(event.revision), event.event.value, event.wave)))
        for event in events
    ]
