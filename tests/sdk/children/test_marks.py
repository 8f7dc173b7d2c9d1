"""Which cluster a child's mark names, and what of it is ours (rules D4, D5, W13)."""

from __future__ import annotations

from typing import Any

from fleetbus.children.marks import ChildMark, is_in_sync, marked_uid
from fleetbus.kube.applied import ServerAnswers
from fleetbus.owned_objects.claim import Ownership
from fleetbus.ownership import OWNER_ANNOTATION, Owner, owner_of
from fleetbus.reconcile import Request
from fleetbus_proto.resources import parse_resource
from support.rows import each_row

MAPS = parse_resource("v1/configmaps")
PARENT = Request("maps", "a", "default", "p")
OWNER = Owner("v1", "ConfigMap", "default", "p", "parent-uid", "a")
MARK = ChildMark("maps", PARENT, MAPS, OWNER)
WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "p-child", "namespace": "default"},
}


def test_d4_the_mark_of_a_child_names_its_cluster_and_the_accepted_uid():
    child = MARK.put_on(WANTED, "b", "uid-b")
    owner = owner_of(child)
    assert owner is not None
    assert (owner.target, owner.target_uid) == ("b", "uid-b")
    assert MARK.claim(child, "b", "uid-b").ownership is Ownership.OURS
    assert marked_uid(child, "b") == "uid-b"
    assert marked_uid(child, "c") == ""


@each_row(("cluster", "uid"), [("b", "another"), ("c", "uid-b"), ("c", "another"), ("c", "")])
def test_d5_a_child_copied_or_restored_elsewhere_is_a_copy(cluster: str, uid: str):
    child = MARK.put_on(WANTED, "b", "uid-b")
    for mark in (MARK, ChildMark("maps", PARENT, MAPS)):  # the parent lives, or is gone
        claim = mark.claim(child, cluster, uid)
        assert claim.ownership is Ownership.COPY
        assert claim.message


def test_d4_a_mark_without_a_uid_is_ours_and_gets_one():
    child = MARK.put_on(WANTED, "b", "")
    assert (owner_of(child) or OWNER).target == ""
    assert MARK.claim(child, "b", "uid-b").ownership is Ownership.OURS
    assert not is_in_sync(child, MARK.put_on(WANTED, "b", "uid-b"), "b", ServerAnswers())


def test_d4_where_nobody_knows_the_uid_the_mark_is_left_as_it_is():
    child = MARK.put_on(WANTED, "b", "uid-b")
    assert MARK.claim(child, "b", "").ownership is Ownership.OURS
    marked = MARK.put_on(WANTED, "b", marked_uid(child, "b"))
    assert is_in_sync(child, marked, "b", ServerAnswers())


def test_d5_a_mark_that_cannot_be_read_names_no_cluster():
    child = MARK.put_on(WANTED, "b", "uid-b")
    child["metadata"]["annotations"][OWNER_ANNOTATION] = "{"
    assert marked_uid(child, "b") == ""
    assert MARK.claim(child, "b", "uid-b").ownership is Ownership.MALFORMED
