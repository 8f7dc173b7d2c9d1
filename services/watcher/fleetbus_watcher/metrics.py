"""What a watcher counts; every series exists from the start of its loop, at 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import Counter, Gauge

from fleetbus.bus.window import Window

_RESOURCE: Final = ("cluster", "resource")

_events = Counter("fleetbus_watcher_events", "Events handed to the publish window.", _RESOURCE)
_epochs = Counter("fleetbus_watcher_epochs", "Complete lists, end marker stored.", _RESOURCE)
_abandoned = Counter("fleetbus_watcher_epochs_abandoned", "Lists given up on doubt.", _RESOURCE)
_failures = Counter("fleetbus_watcher_failures", "Lists and watches that failed.", _RESOURCE)
_degraded = Counter("fleetbus_watcher_degraded", "Objects sent without their body.", _RESOURCE)
_unreadable = Counter(
    "fleetbus_watcher_unreadable", "Objects of which not even the key could be read.", _RESOURCE
)
_audits = Counter("fleetbus_watcher_audits", "Complete audits, last page stored.", _RESOURCE)
_audits_abandoned = Counter(
    "fleetbus_watcher_audits_abandoned", "Audits given up on doubt.", _RESOURCE
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
    "Times that what was told of a cluster no longer held.",
    ["cluster", "alarm"],
)
ALARMS: Final = ("events_lost", "etcd_restored", "cluster_replaced")
_heard = Gauge(
    "fleetbus_watcher_last_received_age_seconds",
    "Since the last byte of a list or watch, bookmarks included.",
    _RESOURCE,
)
_changed = Gauge(
    "fleetbus_watcher_last_event_age_seconds", "Since the last change that a watch told.", _RESOURCE
)
_lag = Gauge(
    "fleetbus_watcher_lag_seconds", "Age of the oldest change that is not stored yet.", _RESOURCE
)
_in_flight = Gauge("fleetbus_watcher_in_flight", "Publishes without an answer yet.", ["cluster"])
_in_flight_bytes = Gauge(
    "fleetbus_watcher_in_flight_bytes", "The size of these publishes.", ["cluster"]
)
_in_flight_age = Gauge(
    "fleetbus_watcher_in_flight_age_seconds", "How long the oldest of them has waited.", ["cluster"]
)
_refused = Gauge(
    "fleetbus_watcher_refused_entries",
    "Entries of the watch list that are not watched: invalid, not served, or never published.",
    ["cluster"],
)
_answered = Gauge(
    "fleetbus_watcher_last_answer_age_seconds",
    "Since the API server last sent anything.",
    ["cluster"],
)
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
    audits: Counter
    audits_abandoned: Counter


_COUNTED: Final = (
    *(_events, _epochs, _abandoned, _failures, _degraded, _unreadable),
    *(_audits, _audits_abandoned),
)


def resource_metrics(cluster: str, resource: str) -> ResourceMetrics:
    """The series of one resource; `resource` is `<group>/<plural>`."""
    return ResourceMetrics(*[family.labels(cluster, resource) for family in _COUNTED])


def forget_counted(cluster: str, resource: str) -> None:
    """A resource left; one that a next life of the cluster goes on with counts on."""
    for family in _COUNTED:
        family.remove_by_labels({"cluster": cluster, "resource": resource})


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


def create_alarms(cluster: str) -> None:
    """Make the series exist at 0, so that the first alarm is seen as a step."""
    for alarm in ALARMS:
        _alarms.labels(cluster, alarm)


class Ages(Protocol):
    """What is told of one resource and scope when metrics are read."""

    @property
    def heard_age(self) -> float:
        """Seconds since the last byte."""
        ...

    @property
    def event_age(self) -> float:
        """Seconds since the last change."""
        ...

    @property
    def lag(self) -> float:
        """Seconds that the oldest change waits to be stored."""
        ...


_followed: dict[tuple[str, str], list[Ages]] = {}


def follow(cluster: str, resource: str, ages: Ages) -> None:
    """Show the ages of a resource; of several scopes the greatest."""
    scopes = _followed.setdefault((cluster, resource), [])
    scopes.append(ages)
    _heard.labels(cluster, resource).set_function(lambda: max(a.heard_age for a in scopes))
    _changed.labels(cluster, resource).set_function(lambda: max(a.event_age for a in scopes))
    _lag.labels(cluster, resource).set_function(lambda: max(a.lag for a in scopes))


def forget(cluster: str, resource: str, ages: Ages) -> None:
    """The resource is not watched any more, or not by this life."""
    scopes = _followed.get((cluster, resource), [])
    scopes[:] = [other for other in scopes if other is not ages]
    if not scopes and _followed.pop((cluster, resource), None) is not None:
        for gauge in (_heard, _changed, _lag):
            gauge.remove(cluster, resource)


def forget_cluster(cluster: str) -> None:
    """Take away every series of a cluster that this process no longer watches."""
    for family in [f for f in globals().values() if isinstance(f, (Counter, Gauge))]:
        family.remove_by_labels({"cluster": cluster})


def show_window(cluster: str, window: Window) -> None:
    """How full the publish window is."""
    _in_flight.labels(cluster).set(window.in_flight)
    _in_flight_bytes.labels(cluster).set(window.size)
    _in_flight_age.labels(cluster).set(window.oldest_age.total_seconds())


def refused(cluster: str) -> Gauge:
    """How many entries of the watch list are not watched."""
    return _refused.labels(cluster)


def follow_answers(cluster: str, age: Callable[[], float]) -> None:
    """Show how long ago the API server last sent anything."""
    _answered.labels(cluster).set_function(age)


def connected(cluster: str) -> Gauge:
    """Whether the API server answers."""
    return _connected.labels(cluster)
