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
    objects = {Place(one["cluster"], one["kind"], one["name"]): one for one in state["objects"]}
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
    wanted = desired(resource["spec"], clusters).objects
    owned = {place for place, one in objects.items() if one["owner"] == resource["uid"]}
    record = {Place(*one) for one in resource["inventory"]}
    for place, data in wanted.items():
        yield from _check_wanted(resource, place, data, objects.get(place))
    for place in sorted(record - wanted.keys()):
        if resource["held"] or resource["states"].get(place.cluster, "").startswith("Conflict"):
            continue  # nothing is pruned where something is held, or could not be applied
        if place in owned:
            yield Violation("D5 surplus", f"{name} no longer wants {place}, and it is there")
        else:
            yield Violation("D2 record", f"{name} has {place} on record, and it is not there")


def _check_wanted(
    resource: Json, place: Place, data: object, found: Json | None
) -> Iterator[Violation]:
    if found is None:
        state = resource["states"].get(place.cluster, "")
        yield Violation("D3 missing", f"{resource['name']} wants {place}: {state}")
    elif found["owner"] != resource["uid"]:
        state = resource["states"].get(place.cluster, "")
        if not state.startswith("Conflict"):
            yield Violation("D6 conflict", f"{place} is a stranger, and the state is {state!r}")
    elif found["data"] != data:
        yield Violation("D13 drift", f"{place} has {found['data']}, not {data}")
    elif found["target"] != place.cluster:
        yield Violation("D4 mark", f"{place} is marked for {found['target']!r}")
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
        (one["cluster"], one["kind"], one["name"])
        for one in state["objects"]
        if one["owner"]
        and one["cluster"]
        and (one["owner"], one["cluster"], one["kind"], one["name"]) not in recorded
    )
    reported = Counter(tuple(one) for one in state["orphans"])
    missing, surplus = actual - reported, reported - actual
    return [
        *(Violation("D7 orphan", f"{Place(*one)} is an orphan, unreported") for one in missing),
        *(Violation("D7 orphan", f"{Place(*one)} is reported, and is none") for one in surplus),
    ]
