"""Metrics of the watcher; every series exists from the start of its loop, at 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from prometheus_client import Counter, Gauge

from fleetbus.bus.window import Window

_RESOURCE: Final = ("cluster", "resource")

_events = Counter("fleetbus_watcher_events", "Events handed to the publish window.", _RESOURCE)
_epochs = Counter("fleetbus_watcher_epochs", "Complete lists, their end marker stored.", _RESOURCE)
_abandoned = Counter(
    "fleetbus_watcher_epochs_abandoned",
    "Lists given up as incomplete.",
    _RESOURCE,
)
_failures = Counter("fleetbus_watcher_failures", "Failed lists and watches.", _RESOURCE)
_degraded = Counter("fleetbus_watcher_degraded", "Objects published without their body.", _RESOURCE)
_unreadable = Counter(
    "fleetbus_watcher_unreadable", "Objects whose key could not be read.", _RESOURCE
)
_audits = Counter("fleetbus_watcher_audits", "Complete audits, their last page stored.", _RESOURCE)
_audits_abandoned = Counter(
    "fleetbus_watcher_audits_abandoned",
    "Audits given up as incomplete.",
    _RESOURCE,
)
_waiting = Gauge(
    "fleetbus_watcher_epochs_waiting", "Epochs that wait for a grant of the projector.", ["cluster"]
)
_granted = Gauge("fleetbus_watcher_epochs_granted", "Epochs that are running.", ["cluster"])
_unanswered = Counter(
    "fleetbus_watcher_epochs_unanswered",
    "Epochs that ran without a grant because the projector did not answer.",
    ["cluster"],
)
_alarms = Counter(
    "fleetbus_watcher_alarms",
    "Times that everything published about a cluster became invalid.",
    ["cluster", "alarm"],
)
ALARMS: Final = ("events_lost", "etcd_restored", "cluster_replaced")
_received = Gauge(
    "fleetbus_watcher_last_received_age_seconds",
    "Time since the last byte of a list or watch, bookmarks included.",
    _RESOURCE,
)
_changed = Gauge(
    "fleetbus_watcher_last_event_age_seconds", "Time since the last change in a watch.", _RESOURCE
)
_lag = Gauge(
    "fleetbus_watcher_lag_seconds", "Age of the oldest change that is not stored yet.", _RESOURCE
)
_in_flight = Gauge("fleetbus_watcher_in_flight", "Publishes not acknowledged yet.", ["cluster"])
_in_flight_bytes = Gauge(
    "fleetbus_watcher_in_flight_bytes", "Size of these publishes.", ["cluster"]
)
_in_flight_age = Gauge(
    "fleetbus_watcher_in_flight_age_seconds", "Age of the oldest of them.", ["cluster"]
)
_refused = Gauge(
    "fleetbus_watcher_refused_entries",
    "Entries of the watch spec that are not watched: invalid, not served, or never published.",
    ["cluster"],
)
_answered = Gauge(
    "fleetbus_watcher_last_answer_age_seconds",
    "Time since the API server last sent anything.",
    ["cluster"],
)
_connected = Gauge("fleetbus_watcher_connected", "1 while the API server answers.", ["cluster"])
_OF_CLUSTER: Final = (
    *(_waiting, _granted, _unanswered, _alarms, _in_flight, _in_flight_bytes, _in_flight_age),
    *(_refused, _answered, _connected),
)

MOVES: Final = ("claimed", "replaced", "taken_over", "given_away")
"""Ways in which a cluster changed hands: it had no holder, its holder died, its holder lives; and
away."""
pool_clusters: Final = Gauge(
    "fleetbus_watcher_pool_clusters", "Clusters whose lease this member holds."
)
pool_members: Final = Gauge(
    "fleetbus_watcher_pool_members", "Live members of the pool, this one included."
)
pool_crashes: Final = Counter(
    "fleetbus_watcher_pool_crashes", "Unexpected errors in the work for one cluster."
)
_moves: Final = Counter("fleetbus_watcher_pool_moves", "Leases that changed hands.", ["how"])
for _how in MOVES:
    _moves.labels(_how)


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
    """Return the series of one resource; `resource` is `<group>/<plural>`."""
    return ResourceMetrics(*[family.labels(cluster, resource) for family in _COUNTED])


def forget_resource(cluster: str, resource: str) -> None:
    """Remove the counters of a resource that is not watched any more."""
    for family in _COUNTED:
        family.remove_by_labels({"cluster": cluster, "resource": resource})


@dataclass(frozen=True, slots=True)
class GrantMetrics:
    """The series of one cluster's grants."""

    waiting: Gauge
    running: Gauge
    unanswered: Counter


def grant_metrics(cluster: str) -> GrantMetrics:
    """Return the series of the grants of one cluster."""
    return GrantMetrics(
        _waiting.labels(cluster), _granted.labels(cluster), _unanswered.labels(cluster)
    )


def alarms(cluster: str, alarm: str) -> Counter:
    """Return the counter of one alarm, one of `ALARMS`."""
    return _alarms.labels(cluster, alarm)


def create_alarms(cluster: str) -> None:
    """Create the series at 0, so that the first alarm shows as an increase."""
    for alarm in ALARMS:
        _alarms.labels(cluster, alarm)


class Ages(Protocol):
    """The ages of one resource and scope, read when metrics are scraped."""

    @property
    def received_age(self) -> float:
        """Seconds since the last byte."""
        ...

    @property
    def event_age(self) -> float:
        """Seconds since the last change."""
        ...

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest change that is not stored yet."""
        ...


_followed: dict[tuple[str, str], list[Ages]] = {}


def show_ages(cluster: str, resource: str, ages: Ages) -> None:
    """Show the ages of a resource; of several scopes the highest."""
    scopes = _followed.setdefault((cluster, resource), [])
    scopes.append(ages)
    _received.labels(cluster, resource).set_function(lambda: max(a.received_age for a in scopes))
    _changed.labels(cluster, resource).set_function(lambda: max(a.event_age for a in scopes))
    _lag.labels(cluster, resource).set_function(lambda: max(a.lag for a in scopes))


def forget_ages(cluster: str, resource: str, ages: Ages) -> None:
    """Stop showing the ages of a resource that is not watched any more."""
    scopes = _followed.get((cluster, resource), [])
    scopes[:] = [other for other in scopes if other is not ages]
    if not scopes and _followed.pop((cluster, resource), None) is not None:
        for gauge in (_received, _changed, _lag):
            gauge.remove(cluster, resource)


def forget_cluster(cluster: str) -> None:
    """Remove every series of a cluster that this process no longer watches."""
    for family in (*_COUNTED, _received, _changed, _lag, *_OF_CLUSTER):
        family.remove_by_labels({"cluster": cluster})


def moved(how: str) -> None:
    """Count a lease that this member gained or lost; `how` is one of `MOVES`."""
    _moves.labels(how).inc()


def show_window(cluster: str, window: Window) -> None:
    """Show how full the publish window is."""
    _in_flight.labels(cluster).set(window.in_flight)
    _in_flight_bytes.labels(cluster).set(window.size)
    _in_flight_age.labels(cluster).set(window.oldest_age.total_seconds())


def refused(cluster: str) -> Gauge:
    """Return the gauge of the entries of the watch spec that are not watched."""
    return _refused.labels(cluster)


def show_answer_age(cluster: str, age: Callable[[], float]) -> None:
    """Show how long ago the API server last sent anything."""
    _answered.labels(cluster).set_function(age)


def show_connected(cluster: str, is_connected: Callable[[], bool]) -> None:
    """Show whether the API server answers."""
    _connected.labels(cluster).set_function(lambda: float(is_connected()))
