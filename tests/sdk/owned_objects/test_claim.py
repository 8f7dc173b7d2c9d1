"""Whose an object in a cluster is, by its mark (rules D4, D5)."""

from typing import Any

import pytest

from fleetbus.owned_objects.claim import Ownership, claim
from fleetbus.ownership import Owner, set_owner
from support.rows import each_row

OWNER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u1", "hub", hub="h1")
FORMER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u0", "hub", hub="h1")
OTHER = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "y", "u2", "hub", hub="h1")
FAR = Owner("fleetbus.dev/v1alpha1", "MultiClusterResource", "d", "x", "u1", "hub", hub="h2")


def owned_by(owner: Owner | None) -> dict[str, Any]:
    obj: dict[str, Any] = {"metadata": {"name": "o", "uid": "live"}}
    return set_owner(obj, owner) if owner else obj


@each_row(
    ("owner", "recorded", "ownership"),
    [
        (OWNER, "", Ownership.OURS),
        (OWNER, "older", Ownership.OURS),
        (FORMER, "", Ownership.FORMER),
        (None, "", Ownership.UNMARKED),
        (None, "older", Ownership.UNMARKED),
        (None, "live", Ownership.OURS),
        (OTHER, "", Ownership.OTHER_OWNER),
        (OTHER, "live", Ownership.LOST),
        (FAR, "", Ownership.OTHER_HUB),
        (FAR, "live", Ownership.LOST),
    ],
)
def test_d4_whose_object_it_is(owner: Owner | None, recorded: str, ownership: Ownership):
    assert claim(owned_by(owner), OWNER, recorded_uid=recorded).ownership is ownership


def test_d4_a_mark_that_cannot_be_read_is_nobodys():
    obj = owned_by(OWNER)
    obj["metadata"]["annotations"] = dict.fromkeys(obj["metadata"]["annotations"], "{broken")
    claimed = claim(obj, OWNER, recorded_uid="live")
    assert claimed.ownership is Ownership.MALFORMED
    assert not claimed.is_confirmed


@pytest.mark.parametrize("missing", ["labels", "annotations"])
def test_d5_label_and_annotation_must_both_name_us(missing: str):
    obj = owned_by(OWNER)
    assert claim(obj, OWNER).is_confirmed
    del obj["metadata"][missing]
    assert not claim(obj, OWNER, recorded_uid="live").is_confirmed


@each_row("owner", [None, FORMER, OTHER, FAR])
def test_d5_the_mark_of_another_confirms_nothing(owner: Owner | None):
    assert not claim(owned_by(owner), OWNER, recorded_uid="live").is_confirmed


@each_row(
    ("target", "ownership", "is_here"),
    [
        (("", ""), Ownership.OURS, True),
        (("c", "uid"), Ownership.OURS, True),
        (("c", "replaced"), Ownership.OURS, False),
        (("renamed", "uid"), Ownership.OURS, False),
        (("elsewhere", "other"), Ownership.COPY, False),
    ],
)
def test_d4_d5_for_which_cluster_it_was_written(
    target: tuple[str, str], ownership: Ownership, is_here: bool
):
    claimed = claim(owned_by(OWNER.on(*target)), OWNER.on("c", "uid"))
    assert (claimed.ownership, claimed.is_here) == (ownership, is_here)
    assert bool(claimed.message) is not is_here
    assert claimed.is_confirmed
