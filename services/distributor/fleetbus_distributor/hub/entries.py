"""The entry of a cluster in the status of a MultiClusterResource: its parts are bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import orjson

from fleetbus.process.redact import cut
from fleetbus_distributor.health.cluster_health import ClusterHealth
from fleetbus_distributor.health.result import HealthState
from fleetbus_distributor.targets.outcome import ClusterOutcome, State

Status: TypeAlias = dict[str, Any]

MAX_MESSAGE: Final = 1024
_MIN_MESSAGE: Final = 80
_MAX_ALL_MESSAGES: Final = 200_000
"""Characters of the messages of all entries: a thousand failing clusters must still fit."""
_MAX_HEALTH: Final = 200
_MIN_HEALTH: Final = 40
_MAX_ALL_HEALTH: Final = 60_000
_MAX_FEEDBACK: Final = 8_000
"""Bytes of the feedback of one cluster."""
_MAX_ALL_FEEDBACK: Final = 100_000
"""Bytes of the feedback of all clusters: etcd takes 1.5 MiB with the intent and the messages."""
_CORRECTION: Final = "lastCorrection"
_MAX_CORRECTION: Final = 400
_MIN_CORRECTION: Final = 60
_MAX_ALL_CORRECTIONS: Final = 60_000
_WITHOUT_NEWS: Final = frozenset({"InProgress", "ClusterSuspended"})


def entries_in(status: Mapping[str, Any]) -> list[Status]:
    """The entries of a status as they are stored."""
    return cast("list[Status]", status.get("clusters") or [])


def write_entries(outcomes: Sequence[ClusterOutcome]) -> list[Status]:
    """Build the entries, which share the room."""
    return [
        write_entry(outcome, len(outcomes))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.name)
    ]


def write_entry(outcome: ClusterOutcome, clusters: int) -> Status:
    """Build the entry of one of so many clusters."""
    limit = _share(_MIN_MESSAGE, MAX_MESSAGE, _MAX_ALL_MESSAGES, clusters)
    entry: Status = {"name": outcome.name, "state": outcome.state.value, "reason": outcome.reason}
    entry["message"] = cut(outcome.message, limit)
    if outcome.revision:
        entry["revision"] = outcome.revision
    if outcome.last_correction:
        limit = _share(_MIN_CORRECTION, _MAX_CORRECTION, _MAX_ALL_CORRECTIONS, clusters)
        entry[_CORRECTION] = cut(outcome.last_correction, limit)
    return entry | _write_health(outcome, clusters)


def _share(least: int, most: int, total: int, clusters: int) -> int:
    return max(least, min(most, total // max(1, clusters)))


def _write_health(outcome: ClusterOutcome, clusters: int) -> Status:
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
    message = cut(health.message, _share(_MIN_HEALTH, _MAX_HEALTH, _MAX_ALL_HEALTH, clusters))
    first = {"object": health.first, "reason": health.reason, "message": message}
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


def read_entries(status: Mapping[str, Any]) -> dict[str, ClusterOutcome]:
    """The last outcomes of all clusters, from their entries."""
    return {
        str(entry["name"]): ClusterOutcome(
            str(entry["name"]),
            State(entry["state"]),
            str(entry.get("reason", "")),
            str(entry.get("message", "")),
            revision=str(entry.get("revision", "")),
            health=_read_health(entry),
            last_correction=str(entry.get(_CORRECTION, "")),
        )
        for entry in entries_in(status)
    }


def _read_health(entry: Mapping[str, Any]) -> ClusterHealth | None:
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
        {str(each["object"]): each["values"] for each in feedback},
    )


def read_entry(status: Mapping[str, Any], cluster: str) -> ClusterOutcome:
    """The last outcome of a cluster, from its entry; one that applied nothing without an entry."""
    return read_entries(status).get(cluster, ClusterOutcome(cluster))


def revisions(status: Mapping[str, Any]) -> dict[str, str]:
    """Cluster → hash of the objects that were last applied there completely."""
    return {str(entry["name"]): str(entry.get("revision", "")) for entry in entries_in(status)}


def clusters_in(status: Mapping[str, Any], state: State) -> frozenset[str]:
    """The clusters whose entry has this state."""
    entries = entries_in(status)
    return frozenset(str(entry["name"]) for entry in entries if entry.get("state") == state)


def with_last(
    outcomes: Sequence[ClusterOutcome], status: Mapping[str, Any]
) -> list[ClusterOutcome]:
    """Fill in what is on record: health where no object was read, and the last correction."""
    before = {str(entry["name"]): entry for entry in entries_in(status)}
    return [_with_last(outcome, before.get(outcome.name, {})) for outcome in outcomes]


def _with_last(outcome: ClusterOutcome, entry: Mapping[str, Any]) -> ClusterOutcome:
    return replace(
        outcome,
        health=outcome.health or _read_health(entry),
        last_correction=outcome.last_correction or str(entry.get(_CORRECTION, "")),
    )


def keep_revision(outcome: ClusterOutcome, revision: str) -> ClusterOutcome:
    """Keep the revision of a cluster without contact: it still has what was applied last."""
    has_news = outcome.state is not State.UNREACHABLE and outcome.reason not in _WITHOUT_NEWS
    return outcome if has_news or outcome.revision else replace(outcome, revision=revision)


def is_ready(outcome: ClusterOutcome) -> bool:
    """Whether everything on a cluster is applied and healthy."""
    return outcome.state is State.APPLIED and not is_unhealthy(outcome)


def is_unhealthy(outcome: ClusterOutcome) -> bool:
    """Whether an object of a cluster is known not to be healthy."""
    return outcome.health is not None and outcome.health.state is not HealthState.HEALTHY
