"""What a watcher counts; every series exists from the start of its loop, at 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter, Gauge

_RESOURCE: Final = ("cluster", "resource")

_events = Counter("fleetbus_watcher_events", "Events handed to the publish window.", _RESOURCE)
_epochs = Counter("fleetbus_watcher_epochs", "Complete lists, end marker stored.", _RESOURCE)
_abandoned = Counter("fleetbus_watcher_epochs_abandoned", "Lists given up on doubt.", _RESOURCE)
_failures = Counter("fleetbus_watcher_failures", "Lists and watches that failed.", _RESOURCE)
_degraded = Counter("fleetbus_watcher_degraded", "Objects sent without their body.", _RESOURCE)
_unreadable = Counter(
    "fleetbus_watcher_unreadable", "Objects of which not even the key could be read.", _RESOURCE
)
_waiting = Gauge(
    "fleetbus_watcher_epochs_waiting", "Epochs that wait for the projector's grant.", ["cluster"]
)
_granted = Gauge("fleetbus_watcher_epochs_granted", "Epochs that run.", ["cluster"])
_unanswered = Counter(
    "fleetbus_watcher_epochs_unanswered",
    "Epochs that went ahead because the projector was silent.",
    ["cluster"],
)
_alarms = Counter(
    "fleetbus_watcher_alarms",
    "Times that everything had to be listed under a new incarnation number.",
    ["cluster", "alarm"],
)
_in_flight = Gauge("fleetbus_watcher_in_flight", "Publishes without an answer yet.", ["cluster"])
_connected = Gauge("fleetbus_watcher_connected", "1 while the API server answers.", ["cluster"])


@dataclass(frozen=True, slots=True)
class ResourceMetrics:
    """The series of one resource of one cluster."""

    events: Counter
    epochs: Counter
    abandoned: Counter
    failures: Counter
    degraded: Counter
    unreadable: Counter


def resource_metrics(cluster: str, resource: str) -> ResourceMetrics:
    """The series of one resource; `resource` is `<group>/<plural>`."""
    families = (_events, _epochs, _abandoned, _failures, _degraded, _unreadable)
    return ResourceMetrics(*[family.labels(cluster, resource) for family in families])


@dataclass(frozen=True, slots=True)
class GrantMetrics:
    """The series of one cluster's grants."""

    waiting: Gauge
    held: Gauge
    unanswered: Counter


def grant_metrics(cluster: str) -> GrantMetrics:
    """The series of the grants of one cluster."""
    return GrantMetrics(
        _waiting.labels(cluster), _granted.labels(cluster), _unanswered.labels(cluster)
    )


def alarms(cluster: str, alarm: str) -> Counter:
    """How often a history broke; `alarm` says what was noticed."""
    return _alarms.labels(cluster, alarm)


def in_flight(cluster: str) -> Gauge:
    """How full the publish window is."""
    return _in_flight.labels(cluster)


def connected(cluster: str) -> Gauge:
    """Whether the API server answers."""
    return _connected.labels(cluster)
