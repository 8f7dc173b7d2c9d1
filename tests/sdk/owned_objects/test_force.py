"""A table of which fields an apply takes from other managers (rules D3, D6, D13)."""

from __future__ import annotations

from typing import Any

from fleetbus.errors import Conflict
from fleetbus.owned_objects.force import ForcePolicy, conflicts, is_forced
from support.rows import each_row

APPLIED: dict[str, Any] = {"metadata": {"managedFields": [{"manager": "m", "operation": "Apply"}]}}
UNAPPLIED: list[dict[str, Any]] = [
    {"metadata": {}},
    {"metadata": {"managedFields": [{"manager": "m", "operation": "Update"}]}},
    {"metadata": {"managedFields": [{"manager": "other", "operation": "Apply"}]}},
]
BY_HAND = ('conflict with "kubectl-edit" using v1', ".spec.containers")
SCALED = ('conflict with "hpa" using apps/v1', ".spec.replicas")
SUBRESOURCE = ('conflict with "hpa" with subresource "scale" using apps/v1', ".spec.x")
APPLIES = ('conflict with "argocd"', ".spec.x")
MARK = ('conflict with "fleetbus-x"', ".metadata.labels.fleetbus.dev/owner-uid")

NEVER = ForcePolicy()
ADOPTS = ForcePolicy(adopts=True)
CORRECTS = ForcePolicy(corrects=True)
BOTH = ForcePolicy(adopts=True, corrects=True)
OVERWRITES = ForcePolicy(overwrites=True)


def causes_of(*fields: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {"reason": "FieldManagerConflict", "message": message, "field": field}
        for message, field in fields
    ]


@each_row(
    ("fields", "is_corrected", "is_adopted"),
    [
        ([BY_HAND], True, True),
        ([SCALED], False, True),
        ([BY_HAND, SCALED], False, True),
        ([SUBRESOURCE], False, False),
        ([APPLIES], False, False),
        ([BY_HAND, APPLIES], False, False),
        ([MARK], False, True),
        ([MARK, BY_HAND], False, True),
        ([MARK, APPLIES], False, False),
        ([], False, False),
    ],
)
def test_d6_who_holds_the_fields_of_an_object_decides(
    fields: list[tuple[str, str]], is_corrected: bool, is_adopted: bool
):
    causes = causes_of(*fields)
    for policy, when_applied, when_not in (
        (NEVER, False, False),
        (CORRECTS, is_corrected, False),
        (ADOPTS, False, is_adopted),
        (BOTH, is_corrected, is_adopted),
        (OVERWRITES, True, True),
    ):
        assert is_forced(policy, causes, APPLIED, "m") is when_applied
        for live in UNAPPLIED:
            assert is_forced(policy, causes, live, "m") is when_not


def test_d6_a_conflict_that_names_no_field_is_a_lost_race():
    race = {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}
    assert not conflicts(Conflict(409, "Conflict", "", race))
    assert not conflicts(Conflict(409, "Conflict", ""))
    causes = causes_of(BY_HAND)
    assert (
        conflicts(Conflict(409, "Conflict", "", {"causes": [*causes, *race["causes"]]})) == causes
    )


@each_row("odd", ["causes", 3, None, ["text"], [{}], [{"reason": 3}]])
def test_d6_odd_causes_force_nothing(odd: object):
    fields = conflicts(Conflict(409, "Conflict", "", {"causes": odd}))
    assert not is_forced(BOTH, fields, APPLIED, "m")
    broken = [{"reason": "FieldManagerConflict", "message": odd, "field": odd}]
    assert not is_forced(BOTH, broken, APPLIED, "m")
    assert not is_forced(BOTH, broken, {"metadata": {"managedFields": odd}}, "m")
