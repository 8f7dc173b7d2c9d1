"""Drift names field, manager and time; a paused object is left alone (rule D26)."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.ownership import PAUSE_ANNOTATION
from fleetbus_distributor.targets.drift_report import describe_drift, find_drift
from support.objects import config_map
from support.rigs.distributor import CONFIG_MAP, POD, Rig

MAPS = "v1/configmaps"
BOTH = {"clusters": [{"name": "t1"}, {"name": "t2"}]}
REPORT = {"drift": "Report"}


def by_hand(rig: Rig, body: dict[str, Any], manager: str = "kubectl-edit") -> str:
    """Change the ConfigMap on t1; when, as the server says."""
    patched = rig.clusters["t1"].patch(MAPS, "default", "m", body, manager=manager)
    entries = patched["metadata"].get("managedFields", [])
    return next((entry["time"] for entry in entries if entry["manager"] == manager), "")


def events(rig: Rig, reason: str) -> list[str]:
    emitted = rig.hub.list("v1/events", "default")
    return [event["message"] for event in emitted if event["reason"] == reason]


async def test_d26_drift_names_field_manager_and_time(rig: Rig):
    rig.create(template=CONFIG_MAP, placement=BOTH, policy=REPORT)
    await rig.reconcile()
    when = by_hand(rig, {"data": {"k": "canary"}})
    await rig.repair("t1")
    expected = f"ConfigMap default/m: .data.k was changed by kubectl-edit at {when}"
    assert rig.entry("t1")["message"] == expected
    assert "canary" not in str(rig.resource()["status"])
    assert rig.entry("t2")["state"] == "Applied"
    by_hand(rig, {"data": {"k": None}})
    await rig.repair("t1")
    assert rig.entry("t1")["message"] == "ConfigMap default/m: .data was removed"


async def test_d26_ignored_drift_is_neither_reported_nor_corrected(rig: Rig):
    rig.create(template=CONFIG_MAP, placement=BOTH, policy={"drift": "Ignore"})
    await rig.reconcile()
    by_hand(rig, {"data": {"k": "by hand"}})
    before = len(rig.writes("t1"))
    await rig.repair("t1")
    await rig.reconcile()
    assert rig.entry("t1")["state"] == "Applied"
    assert len(rig.writes("t1")) == before
    rig.edit(template={**CONFIG_MAP, "data": {"k": "edited"}})
    await rig.reconcile()
    assert rig.get("t2", MAPS, "m")["data"] == {"k": "edited"}
    assert rig.entry("t1")["reason"] == "FieldConflict", "an edit does not take it back either"
    assert ".data.k" in rig.entry("t1")["message"]


async def test_d26_a_paused_object_is_neither_changed_nor_deleted(rig: Rig):
    marked = config_map(metadata={"annotations": {PAUSE_ANNOTATION: "true"}})
    rig.create(template=marked, placement=BOTH)
    await rig.reconcile()
    found = rig.get("t1", MAPS, "m")["metadata"]["annotations"]
    assert PAUSE_ANNOTATION not in found, "only people on the cluster pause an object"
    paused = {"metadata": {"annotations": {PAUSE_ANNOTATION: "while I look"}}}
    by_hand(rig, paused)
    await rig.reconcile()
    assert rig.entry("t1")["state"] == "Applied", "a paused object may be as it should be"
    by_hand(rig, {"data": {"k": "by hand"}})
    await rig.reconcile()
    await rig.reconcile()
    assert (rig.entry("t1")["state"], rig.entry("t1")["reason"]) == ("Waiting", "Paused")
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "by hand"}
    rig.delete()
    await rig.reconcile()
    assert rig.has("t1", MAPS, "m")
    assert not rig.has("t2", MAPS, "m")
    assert rig.entry("t1")["reason"] == "Paused"
    by_hand(rig, {"metadata": {"annotations": {PAUSE_ANNOTATION: None}}})
    await rig.until(lambda: not rig.exists())
    assert not rig.has("t1", MAPS, "m")


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_d26_a_deletion_goes_on_as_soon_as_the_pause_ends(rig: Rig, is_deleted: bool):
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    by_hand(rig, {"metadata": {"annotations": {PAUSE_ANNOTATION: "while I look"}}})
    if is_deleted:
        rig.delete()
    else:
        rig.edit(placement={"clusters": [{"name": "t2"}]})
    await rig.reconcile()
    assert (rig.entry("t1")["state"], rig.entry("t1")["reason"]) == ("Held", "Paused")
    rig.later.clear()
    by_hand(rig, {"metadata": {"annotations": {PAUSE_ANNOTATION: None}}})
    await rig.repair("t1")  # the event of that change
    assert rig.later["x", ""] <= timedelta(seconds=1), "it waits for the next retry"
    await rig.reconcile()
    assert not rig.has("t1", MAPS, "m")


def test_d26_items_of_lists_are_found_by_name():
    live: dict[str, Any] = copy.deepcopy(POD)
    live["spec"]["containers"][0]["image"] = "other"
    fields: dict[str, Any] = {"f:spec": {"f:containers": {'k:{"name":"busybox"}': {"f:image": {}}}}}
    live["metadata"]["managedFields"] = [
        {"manager": "ours", "operation": "Apply", "time": "2026-01-03T00:00:00Z", "fieldsV1": {}},
        {"manager": "set-image", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields},
        {"manager": "status", "subresource": "status", "time": "2026-01-02T00:00:00Z"},
    ]
    (drift,) = find_drift(POD, POD, live, "ours")
    expected = '.spec.containers[name="busybox"].image was changed by set-image'
    assert str(drift) == f"{expected} at 2026-01-01T00:00:00Z"


def test_d26_much_drift_is_described_in_few_words():
    desired = {**CONFIG_MAP, "data": {f"k{n}": "v" for n in range(9)}}
    live: dict[str, Any] = {**CONFIG_MAP, "data": {}}
    text = describe_drift(find_drift(desired, desired, live, "ours"))
    assert text.endswith("; and 6 more fields")
    assert describe_drift(find_drift(desired, desired, desired, "ours")) == ""


async def test_waiting_conflict_and_held_are_events_once(rig: Rig):
    rig.create("waits", template=config_map(namespace="shop"), placement=BOTH)
    stranger = {"metadata": {"name": "m", "namespace": "default"}, "data": {"k": "theirs"}}
    for name in ("t1", "t2"):
        rig.clusters[name].create(MAPS, stranger)
    rig.create("taken", template=CONFIG_MAP, placement=BOTH)
    for _ in range(3):
        await rig.reconcile("waits")
        await rig.reconcile("taken")
    (waiting,) = events(rig, "Waiting")
    assert waiting.startswith("t1, t2: namespace 'shop' does not exist")
    (conflict,) = events(rig, "Conflict")
    assert conflict.startswith("t1, t2: ConfigMap default/m exists")
    selector = {"clusterSelector": {"matchLabels": {"zone": "a"}}}
    config = {**CONFIG_MAP, "metadata": {"name": "h", "namespace": "default"}}
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="a")
    rig.create("held", template=config, placement=selector)
    await rig.reconcile("held")
    for name in ("t1", "t2"):
        rig.fleet.join(name, zone="b")
    for _ in range(3):
        await rig.reconcile("held")
    (hold,) = events(rig, "Held")
    assert hold.startswith("t1, t2: 1 object(s) are not deleted")
    assert len(events(rig, "Applied")) == 1


async def test_d26_a_correction_names_field_manager_and_time(rig: Rig):
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    when = by_hand(rig, {"data": {"k": "canary"}})
    await rig.repair("t1")
    expected = f"ConfigMap default/m: .data.k was changed by kubectl-edit at {when}"
    assert rig.entry("t1")["state"] == "Applied"
    assert rig.entry("t1")["lastCorrection"] == expected
    assert "lastCorrection" not in rig.entry("t2")
    assert events(rig, "Corrected") == [f"t1: {expected}"]
    assert events(rig, "Patched") == []
    (published,) = [event for event in rig.events if event.event == "corrected"]
    (field,) = published.objects
    assert (published.cluster, published.message) == ("t1", expected)
    assert (field.field, field.manager, field.time) == (".data.k", "kubectl-edit", when)
    assert "canary" not in str(rig.resource()["status"])

    rig.clusters["t1"].delete(MAPS, "default", "m")
    for _ in range(2):
        await rig.reconcile()
    assert rig.entry("t1")["lastCorrection"] == "ConfigMap default/m: it was deleted"
    assert len(events(rig, "Corrected")) == 2

    rig.edit(template={**CONFIG_MAP, "data": {"k": "edited"}})
    for _ in range(2):
        await rig.reconcile()
    assert len(events(rig, "Corrected")) == 2, "an edit is no correction"
    assert rig.entry("t1")["lastCorrection"] == "ConfigMap default/m: it was deleted"


async def test_d26_an_edit_that_takes_a_change_back_tells_it_apart_from_its_own(rig: Rig):
    rig.create(template=CONFIG_MAP, placement=BOTH)
    await rig.reconcile()
    when = by_hand(rig, {"data": {"k": "by hand"}})
    rig.edit(template={**CONFIG_MAP, "data": {"k": "edited", "other": "new"}})
    await rig.reconcile()
    assert rig.get("t1", MAPS, "m")["data"] == {"k": "edited", "other": "new"}
    expected = f"ConfigMap default/m: .data.k was changed by kubectl-edit at {when}"
    assert events(rig, "Corrected") == [f"t1: {expected}"]
