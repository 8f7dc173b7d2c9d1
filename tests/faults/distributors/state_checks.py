"""Checks of a quiet fleet: what is there is what the specs ask for, and all of it is on record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from faults.distributors.desired import Place, desired
from faults.rig.records import Violation

Json = dict[str, Any]


def check_state(state: Json) -> list[Violation]:
    """Everything that is not as it has to be once a fleet is quiet."""
    if problem := state.get("unreadable"):
        return [Violation("D2 unreadable", problem)]
    objects = {Place(obj["cluster"], obj["kind"], obj["name"]): obj for obj in state["objects"]}
    return [
        violation
        for resource in state["resources"]
        for violation in _check_resource(resource, objects, state["clusters"])
    ] + _check_orphans(state)


def _check_resource(
    resource: Json, objects: dict[Place, Json], clusters: Json
) -> Iterator[Violation]:
    name = resource["name"]
    if resource["isDeleting"]:
        yield Violation("D7 stuck", f"{name} is still being deleted: {resource['states']}")
        return
    if resource["observed"] != resource["generation"]:
        yield Violation("D1 stall", f"{name}: generation {resource['generation']} is not observed")
    expected = desired(resource["spec"], clusters).objects
    owned = {place for place, obj in objects.items() if obj["owner"] == resource["uid"]}
    record = {Place(*entry) for entry in resource["inventory"]}
    for place, data in expected.items():
        yield from _check_wanted(resource, place, data, objects.get(place))
    for place in sorted(record - expected.keys()):
        if resource["held"] or resource["states"].get(place.cluster, "").startswith("Conflict"):
            continue  # nothing is pruned where something is held, or could not be applied
        if place in owned:
            yield Violation("D5 surplus", f"{name} no longer wants {place}, and it is there")
        else:
            yield Violation("D2 record", f"{name} has {place} on record, and it is not there")


def _check_wanted(
    resource: Json, place: Place, data: object, live: Json | None
) -> Iterator[Violation]:
    if live is None:
        state = resource["states"].get(place.cluster, "")
        yield Violation("D3 missing", f"{resource['name']} wants {place}: {state}")
    elif live["owner"] != resource["uid"]:
        state = resource["states"].get(place.cluster, "")
        if not state.startswith("Conflict"):
            yield Violation("D6 conflict", f"{place} is a stranger, and the state is {state!r}")
    elif live["data"] != data:
        yield Violation("D13 drift", f"{place} has {live['data']}, not {data}")
    elif live["target"] != place.cluster:
        yield Violation("D4 mark", f"{place} is marked for {live['target']!r}")
    elif [*place] not in resource["inventory"]:
        yield Violation("D2 record", f"{place} is {resource['name']}'s, and is not on record")


def _check_orphans(state: Json) -> list[Violation]:
    """All that nobody has on record is found, and nothing else."""
    recorded = {
        (resource["uid"], *place)
        for resource in state["resources"]
        for place in resource["inventory"]
    }
    actual = Counter(
        (obj["cluster"], obj["kind"], obj["name"])
        for obj in state["objects"]
        if obj["owner"]
        and obj["cluster"]
        and (obj["owner"], obj["cluster"], obj["kind"], obj["name"]) not in recorded
    )
    reported = Counter(tuple(orphan) for orphan in state["orphans"])
    missing, surplus = actual - reported, reported - actual
    return [
        *(
            Violation("D7 orphan", f"{Place(*orphan)} is an orphan, unreported")
            for orphan in missing
        ),
        *(
            Violation("D7 orphan", f"{Place(*orphan)} is reported, and is none")
            for orphan in surplus
        ),
    ]
