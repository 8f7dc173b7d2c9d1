"""A table of what may be done with a live object (rules D4, D5, D8, D26)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from fleetbus.owned_objects.claim import Claim, Ownership
from fleetbus.owned_objects.decision import Decision, RemovalPolicy, decide_apply, decide_removal
from fleetbus.ownership import PAUSE_ANNOTATION, PROTECT_ANNOTATION
from support.rows import each_row

PLAIN: dict[str, Any] = {}
LEAVING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
PROTECTED: dict[str, Any] = {"annotations": {PROTECT_ANNOTATION: "true"}}
UNPROTECTED: dict[str, Any] = {"annotations": {PROTECT_ANNOTATION: "false"}}
PAUSED: dict[str, Any] = {"annotations": {PAUSE_ANNOTATION: "yes"}}

OURS = Claim(Ownership.OURS, is_confirmed=True)
FORMER = Claim(Ownership.FORMER, is_confirmed=True)
COPY = Claim(Ownership.COPY, is_here=False, is_confirmed=True)
RENAMED = Claim(Ownership.OURS, is_here=False, is_confirmed=True)
BY_RECORD = Claim(Ownership.OURS)
STRANGERS = [
    Claim(ownership)
    for ownership in (
        Ownership.UNMARKED,
        Ownership.OTHER_OWNER,
        Ownership.OTHER_HUB,
        Ownership.MALFORMED,
        Ownership.LOST,
    )
]
POLICY = RemovalPolicy(deletes={Ownership.OURS, Ownership.FORMER, Ownership.COPY})


def live(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "o", "uid": "live", **metadata}}


@each_row(
    ("metadata", "claim", "decision"),
    [
        (PLAIN, OURS, Decision.APPLY),
        (PROTECTED, OURS, Decision.APPLY),
        (PLAIN, BY_RECORD, Decision.APPLY),
        (PLAIN, RENAMED, Decision.APPLY),
        (PLAIN, FORMER, Decision.REPLACE),
        (PROTECTED, FORMER, Decision.PROTECTED),
        (PLAIN, replace(FORMER, is_confirmed=False), Decision.FORGET),
        (PLAIN, replace(FORMER, is_here=False), Decision.COPY),
        (PLAIN, COPY, Decision.NOT_OURS),
        *((PLAIN, stranger, Decision.NOT_OURS) for stranger in STRANGERS),
        *((LEAVING, claim, Decision.WAIT) for claim in (OURS, FORMER, COPY, *STRANGERS)),
    ],
)
def test_d4_what_an_object_in_the_place_of_ours_allows(
    metadata: dict[str, Any], claim: Claim, decision: Decision
):
    assert decide_apply(live(metadata), claim, takes={Ownership.OURS}) is decision


@each_row("claim", [OURS, FORMER, COPY, *STRANGERS])
def test_d4_a_policy_may_take_what_belongs_to_others(claim: Claim):
    assert decide_apply(live(PLAIN), claim, takes=frozenset(Ownership)) is Decision.APPLY


@each_row(
    ("metadata", "claim", "decision"),
    [
        (PLAIN, OURS, Decision.DELETE),
        (UNPROTECTED, OURS, Decision.DELETE),
        (PLAIN, FORMER, Decision.DELETE),
        (LEAVING, OURS, Decision.WAIT),
        (PROTECTED, OURS, Decision.PROTECTED),
        (PROTECTED | LEAVING, OURS, Decision.PROTECTED),
        (PLAIN, COPY, Decision.COPY),
        (PLAIN, RENAMED, Decision.COPY),
        (PROTECTED, COPY, Decision.COPY),
        (PLAIN, BY_RECORD, Decision.FORGET),
        (PROTECTED, BY_RECORD, Decision.FORGET),
        *((PLAIN, stranger, Decision.FORGET) for stranger in STRANGERS),
        *((PLAIN, replace(stranger, is_confirmed=True), Decision.FORGET) for stranger in STRANGERS),
    ],
)
def test_d5_only_what_is_ours_here_and_not_protected_is_deleted(
    metadata: dict[str, Any], claim: Claim, decision: Decision
):
    assert decide_removal(live(metadata), claim, POLICY) is decision


@pytest.mark.parametrize("deletes", [frozenset[Ownership](), {Ownership.FORMER}])
def test_d5_what_the_policy_does_not_name_is_not_deleted(deletes: AbstractSet[Ownership]):
    assert decide_removal(live(PLAIN), OURS, replace(POLICY, deletes=deletes)) is Decision.FORGET


@each_row(
    ("changes", "metadata", "decision"),
    [
        ({"kept": {"live"}}, PLAIN, Decision.FORGET),
        ({"kept": {"other"}}, PLAIN, Decision.DELETE),
        ({}, PAUSED, Decision.DELETE),
        ({"heeds_pause": True}, PAUSED, Decision.PAUSED),
        ({"heeds_pause": True, "releases": True}, PAUSED, Decision.PAUSED),
        ({"confirmed_uid": "live"}, PLAIN, Decision.DELETE),
        ({"confirmed_uid": "other"}, PLAIN, Decision.NOT_CONFIRMED),
        ({"confirmed_uid": "other", "releases": True}, PLAIN, Decision.NOT_CONFIRMED),
        ({"releases": True}, PLAIN, Decision.RELEASE),
        ({"releases": True}, LEAVING, Decision.RELEASE),
        ({"releases": True}, PROTECTED, Decision.PROTECTED),
    ],
)
def test_d8_d26_what_else_decides_about_a_removal(
    changes: dict[str, Any], metadata: dict[str, Any], decision: Decision
):
    assert decide_removal(live(metadata), OURS, replace(POLICY, **changes)) is decision
