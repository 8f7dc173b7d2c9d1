"""Health and feedback of a cluster in the status of a MultiClusterResource: bounded parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import orjson

from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.health import HealthState
from fleetbus_distributor.targets.outcome import ClusterOutcome, State

Status: TypeAlias = dict[str, Any]

_MAX_MESSAGE: Final = 200
_MIN_MESSAGE: Final = 40
_MAX_ALL_MESSAGES: Final = 60_000
_MAX_FEEDBACK: Final = 8_000
"""Bytes of the feedback of one cluster."""
_MAX_ALL_FEEDBACK: Final = 100_000
"""Bytes of the feedback of all clusters: etcd takes 1.5 MiB with the intent and the messages."""


def with_last_health(
    outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
) -> list[ClusterOutcome]:
    """Give clusters whose objects were not read the health that is on record for them."""
    before = {
        str(entry["name"]): entry for entry in cast("list[Status]", old.get("clusters") or [])
    }
    for outcome in outcomes:
        if outcome.health is None and outcome.name in before:
            outcome.health = read_health(before[outcome.name])
    return list(outcomes)


def is_ready(outcome: ClusterOutcome) -> bool:
    """Whether everything on a cluster is applied and healthy."""
    return outcome.state is State.APPLIED and not is_unhealthy(outcome)


def is_unhealthy(outcome: ClusterOutcome) -> bool:
    """Whether an object of a cluster is known not to be healthy."""
    return outcome.health is not None and outcome.health.state is not HealthState.HEALTHY


def write_health(outcome: ClusterOutcome, clusters: int) -> Status:
    """The part of a cluster's entry; `clusters` share the room."""
    if outcome.health is None:
        return {}
    if outcome.state is State.UNREACHABLE:
        entry: Status = {"health": HealthState.UNKNOWN.value}
    else:
        entry = {"health": outcome.health.state.value} | _unhealthy(outcome.health, clusters)
    return entry | _feedback(outcome.health, clusters)


def _unhealthy(health: ClusterHealth, clusters: int) -> Status:
    if health.state is HealthState.HEALTHY:
        return {}
    limit = max(_MIN_MESSAGE, min(_MAX_MESSAGE, _MAX_ALL_MESSAGES // max(1, clusters)))
    message = health.message
    cut_message = message if len(message) <= limit else f"{message[: limit - 1]}…"
    first = {"object": health.first, "reason": health.reason, "message": cut_message}
    return {"unhealthy": {**first, "objects": health.objects}}


def _feedback(health: ClusterHealth, clusters: int) -> Status:
    room = min(_MAX_FEEDBACK, _MAX_ALL_FEEDBACK // max(1, clusters))
    entries: list[Status] = []
    for name in sorted(health.feedback):
        entry = {"object": name, "values": dict(health.feedback[name])}
        room -= len(orjson.dumps(entry))
        if room < 0:
            break
        entries.append(entry)
    omitted = len(health.feedback) - len(entries)
    fields: Status = {"feedback": entries} if entries else {}
    return fields | ({"feedbackOmitted": omitted} if omitted else {})


def read_health(entry: Mapping[str, Any]) -> ClusterHealth | None:
    """The health in a stored entry; None if it has none."""
    state = entry.get("health")
    if state not in tuple(HealthState):
        return None
    first = cast("Status", entry.get("unhealthy") or {})
    feedback = cast("list[Status]", entry.get("feedback") or [])
    return ClusterHealth(
        HealthState(str(state)),
        int(first.get("objects", 0)),
        str(first.get("object", "")),
        str(first.get("reason", "")),
        str(first.get("message", "")),
        {str(entry["object"]): entry["values"] for entry in feedback},
    )
