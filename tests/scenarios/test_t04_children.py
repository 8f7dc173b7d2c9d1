"""T4: parents in one cluster, children in others, and what becomes of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.ownership import OWNER_ANNOTATION, OWNER_UID_LABEL, owner_of
from support.eventually import eventually, never
from support.full import FULL
from support.rigs.children import Object, OpenRig, start
from support.rigs.fleet import Rig
from support.rigs.scenario import MAPS, QUIET, WITHIN

LONG_QUIET = timedelta(seconds=30) if FULL else QUIET
AFTER_RETURN = timedelta(seconds=30)


@pytest.fixture
async def rig(open_rig: OpenRig) -> Rig:
    return await open_rig("a", "b", "c")


@pytest.fixture
def logs() -> Iterator[Sequence[Mapping[str, Any]]]:
    with capture_logs() as entries:
        yield entries


async def test_t4_a_child_is_made_after_the_finalizer_kept_right_and_gone_before_its_parent(
    rig: Rig,
) -> None:
    home = await start(rig)
    b = rig.clusters["b"]
    parent = home.parent("p", value="1")
    child = await home.child("b", "p", value="1")
    finalized, created = home.writes("a")[0], home.writes("b")[0]
    assert finalized.time < created.time  # the finalizer is stored before the child is made
    owner = owner_of(child)
    assert owner is not None
    assert (owner.cluster_name, owner.uid) == ("a", parent["metadata"]["uid"])
    assert child["metadata"]["labels"][OWNER_UID_LABEL] == parent["metadata"]["uid"]
    assert "ownerReferences" not in child["metadata"]
    name = child["metadata"]["name"]
    b.delete(MAPS, "default", name)
    again = await home.child("b", "p")  # made again
    assert again["metadata"]["name"] == name
    b.patch(MAPS, "default", name, {"data": {"value": "by hand", "answer": "42"}})
    await home.child("b", "p", value="1", answer="42")
    await eventually(
        lambda: (home.has("p") or {})["data"].get("from-b") == "42", WITHIN
    )  # propagated
    b.patch(MAPS, "default", name, {"metadata": {"finalizers": ["example.io/slow"]}})
    rig.clusters["a"].delete(MAPS, "default", "p")
    await eventually(
        lambda: home.children("b", "p")[0]["metadata"].get("deletionTimestamp"), WITHIN
    )
    assert home.is_held("p")  # the child is still there
    b.patch(MAPS, "default", name, {"metadata": {"finalizers": []}})
    await eventually(lambda: not home.is_held("p"), WITHIN)
    assert not home.children("b")
    home.drop_other_finalizer("p")  # it has survived every step
    assert home.has("p") is None


async def test_w13_children_survive_another_cluster_behind_the_name_of_their_parents(
    rig: Rig, logs: Sequence[Mapping[str, Any]]
) -> None:
    home = await start(rig)
    a, b = rig.clusters["a"], rig.clusters["b"]
    empty = a.resource_version
    home.parent("p", value="1")
    child = await home.child("b", "p", value="1")
    await rig.quiet("maps")
    uid = child["metadata"]["uid"]
    a.roll_back(empty)  # the parent is not in the other cluster
    a.swap_uid()
    b.patch(MAPS, "default", child["metadata"]["name"], {"data": {"value": "touched"}})
    await eventually(
        lambda: [
            log
            for log in logs
            if "another cluster" in log.get("reason", "") and log["event"] == "reconcile_waits"
        ],
        WITHIN,
    )
    assert [one["metadata"]["uid"] for one in home.children("b")] == [uid]
    assert "delete" not in {write.verb for write in home.writes("b")}


@pytest.mark.full  # tests/sdk/children/test_marks.py has it, without the watchers
async def test_d4_a_child_restored_from_another_server_is_not_ours(rig: Rig) -> None:
    home = await start(rig)
    a, b = rig.clusters["a"], rig.clusters["b"]
    home.parent("p", value="1")
    child = await home.child("b", "p", value="1")
    owner = owner_of(child)
    assert owner is not None
    assert (owner.target, owner.target_uid) == ("b", b.uid)
    await rig.quiet("maps")

    def asked() -> int:
        return sum("/configmaps/" in request.path for request in b.requests)

    before = asked()
    a.patch(MAPS, "default", "p", {"metadata": {"annotations": {"some": "thing"}}})
    await rig.quiet("maps")
    assert asked() == before, "the snapshot tells that the mark is right"

    # As a backup of another cluster that had this name brings it.
    restored = {OWNER_ANNOTATION: owner.on("b", "of another server").to_json()}
    name = child["metadata"]["name"]
    b.patch(MAPS, "default", name, {"metadata": {"annotations": restored}})
    a.patch(MAPS, "default", "p", {"data": {"value": "2"}})
    await eventually(lambda: "another cluster" in str((home.has("p") or {}).get("data")), WITHIN)
    written = len(home.writes("b"))
    a.delete(MAPS, "default", "p")
    await eventually(lambda: not home.is_held("p"), WITHIN)
    assert [one["data"]["value"] for one in home.children("b", "p")] == ["1"]
    assert len(home.writes("b")) == written


@pytest.mark.full
async def test_t4_an_unreachable_cluster_delays_only_the_parents_of_its_children(
    rig: Rig,
) -> None:
    home = await start(rig)
    home.parent("in-b")
    home.parent("in-c", to="c")
    await home.child("b", "in-b")
    await home.child("c", "in-c")
    await rig.servers.stop("b")
    for name in ("in-b", "in-c"):
        home.drop_other_finalizer(name)
        rig.clusters["a"].delete(MAPS, "default", name)
    await eventually(lambda: home.has("in-c") is None, WITHIN)
    await never(lambda: not home.is_held("in-b"), LONG_QUIET)
    assert len(home.children("b")) == 1
    await rig.servers.start("b")
    await eventually(lambda: home.has("in-b") is None, AFTER_RETURN)
    assert not home.children("b")


async def test_t4_with_policy_retain_the_parent_goes_and_what_is_left_is_reported(
    rig: Rig, logs: Sequence[Mapping[str, Any]]
) -> None:
    home = await start(rig, unreachable="retain")
    home.parent("p")
    await home.child("b", "p")
    home.drop_other_finalizer("p")
    await rig.servers.stop("b")
    rig.clusters["a"].delete(MAPS, "default", "p")
    await eventually(lambda: home.has("p") is None, WITHIN)
    # The warning comes after the parent was released.
    await eventually(
        lambda: [line for line in logs if line["event"] == "child_left_behind"], WITHIN
    )
    left = [line for line in logs if line["event"] == "child_left_behind"]
    assert {line["child_cluster"] for line in left} == {"b"}
    assert len(home.children("b")) == 1


@pytest.mark.full  # tests/sdk/children has it, without the watchers
async def test_t4_a_child_whose_parent_went_unseen_is_removed_unless_nobody_can_look(
    rig: Rig,
) -> None:
    home = await start(rig)
    a = rig.clusters["a"]
    home.parent("p")
    child = await home.child("b", "p")
    home.drop_other_finalizer("p")
    await rig.stop_reconciler()
    a.patch(MAPS, "default", "p", {"metadata": {"finalizers": []}})
    a.delete(MAPS, "default", "p")
    assert home.has("p") is None
    await rig.servers.stop("a")
    rig.start_reconciler(home.controller)
    touch = {"metadata": {"labels": {"touched": "yes"}}}
    rig.clusters["b"].patch(MAPS, "default", child["metadata"]["name"], touch)
    await never(lambda: not home.children("b"), QUIET)
    await rig.servers.start("a")
    await home.childless("b", "p", AFTER_RETURN)


@pytest.mark.full  # tests/sdk/children has it, without the watchers
async def test_t4_a_parent_may_have_several_children_they_move_and_a_copy_is_only_reported(
    rig: Rig, logs: Sequence[Mapping[str, Any]]
) -> None:
    home = await start(rig)
    a, b = rig.clusters["a"], rig.clusters["b"]
    home.parent("p", to="b,c")
    child = await home.child("b", "p")
    await home.child("c", "p")
    copied: Object = copy.deepcopy(child)
    copied["metadata"] = {
        "name": "a-copy",
        "labels": child["metadata"]["labels"],
        "annotations": child["metadata"]["annotations"],
    }
    b.create(MAPS, copied, "default")
    await eventually(lambda: [log for log in logs if log["event"] == "child_extra"], WITHIN)
    a.patch(MAPS, "default", "p", {"data": {"to": "c"}})
    await eventually(lambda: len(home.children("b", "p")) == 1, WITHIN)
    await rig.quiet("maps")
    assert [one["metadata"]["name"] for one in home.children("b")] == ["a-copy"]
    assert len(home.children("c", "p")) == 1
    assert len([log for log in logs if log["event"] == "child_extra"]) == 1
    assert not [log for log in logs if log["event"] == "reconcile_failed"]
