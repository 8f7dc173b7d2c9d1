"""Every metric of the SDK, by name; services add their own beside their loops."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from fleetbus.reconcile import Outcome

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

OUTCOMES: Final = tuple(outcome for outcome in Outcome if outcome is not Outcome.STOPPED)
RECONCILES: Final = Counter(
    "fleetbus_reconciles_total",
    f"Finished reconciles by outcome: {', '.join(OUTCOMES)}; the cluster is empty for one that is "
    "not in the fleet.",
    ["controller", "cluster", "outcome"],
)
RECONCILE_SECONDS: Final = Histogram(
    "fleetbus_reconcile_seconds",
    "Time in the reconcile function.",
    ["controller"],
    buckets=_SECONDS,
)
QUEUE_WAIT_SECONDS: Final = Histogram(
    "fleetbus_queue_wait_seconds",
    "From the time a request was enqueued to the start of its reconcile.",
    ["controller"],
    buckets=_SECONDS,
)
QUEUE_DEPTH: Final = Gauge(
    "fleetbus_queue_depth",
    "Items by state: ready, delayed, processing, quarantined.",
    ["controller", "state"],
)
QUEUE_CLUSTER_DEPTH: Final = Gauge(
    "fleetbus_queue_cluster_depth", "Ready items of a cluster.", ["controller", "cluster"]
)
QUEUE_OLDEST_SECONDS: Final = Gauge(
    "fleetbus_queue_oldest_seconds",
    "Age of the oldest ready item of a cluster; 0 if there is none.",
    ["controller", "cluster"],
)
QUEUE_QUARANTINED: Final = Gauge(
    "fleetbus_queue_quarantined",
    "Items of a cluster whose workers keep dying: `fleetbus queue` lists them.",
    ["controller", "cluster"],
)
QUEUE_BREAKER_OPEN: Final = Gauge(
    "fleetbus_queue_breaker_open",
    "1 while the cluster does not answer and only single items probe it.",
    ["controller", "cluster"],
)
_OF_QUEUE: Final = (
    QUEUE_CLUSTER_DEPTH,
    QUEUE_OLDEST_SECONDS,
    QUEUE_QUARANTINED,
    QUEUE_BREAKER_OPEN,
)
EVENTS_CONSUMED: Final = Counter(
    "fleetbus_events_consumed_total", "Messages handled.", ["consumer"]
)
SUPERSEDED: Final = Counter(
    "fleetbus_events_superseded_total",
    "Messages acknowledged unhandled, because a newer state of the object arrived first.",
    ["consumer"],
)
REJECTED_MESSAGES: Final = Counter(
    "fleetbus_rejected_messages_total",
    "Rejected messages: unreadable, or about something else than their subject says.",
    ["consumer", "cluster"],
)
SKIPPED_ENTRIES: Final = Gauge(
    "fleetbus_provider_skipped_entries",
    "Unusable entries of a provider: Secrets, profiles, contexts, files; the log lists them.",
    ["provider"],
)
MAP_FAILURES: Final = Counter(
    "fleetbus_map_failures_total",
    "Objects for which a predicate or mapping function raised, or a map returned no requests.",
    ["controller", "cluster"],
)
OUTSIDE_FLEET: Final = Counter(
    "fleetbus_requests_outside_fleet_total",
    "Requests of a map or an owner mark that were dropped: their cluster is not in the fleet.",
    ["controller"],
)
SKIPPED: Final = Counter(
    "fleetbus_skipped_reconciles_total",
    "Changes and objects of a full enqueue that a successful run had already read.",
    ["controller", "source"],
)
SKIPPED_SOURCES: Final = ("event", "full_enqueue")
UNSENT_WRITES: Final = Counter(
    "fleetbus_unsent_writes_total",
    "Writes that would have changed nothing and were not sent.",
    ["controller"],
)
SNAPSHOT_BEHIND: Final = Counter(
    "fleetbus_snapshot_behind_total",
    "Runs that were requeued because the snapshot was older than the change that caused them.",
    ["controller"],
)
CHILD_PROBLEMS: Final = Counter(
    "fleetbus_child_problems_total",
    "New problems with children of a Children controller: Conflict, Extra, LeftBehind, Missing, "
    "Protected, Refused, Unreachable.",
    ["controller", "problem"],
)
KUBE_EVENTS: Final = Counter(
    "fleetbus_kube_events_total",
    "Kubernetes Events by outcome: written, limited, failed.",
    ["controller", "outcome"],
)


_finished: Final[dict[tuple[str, str, Outcome], Counter]] = {}
"""Series of `RECONCILES` that were looked up: that takes longer than to count."""


def count_reconcile(controller: str, cluster: str, outcome: Outcome) -> None:
    """Count a reconcile that has finished; its cluster is empty if it is not in the fleet."""
    key = (controller, cluster, outcome)
    series = _finished.get(key)
    if series is None:
        series = _finished[key] = RECONCILES.labels(*key)
    series.inc()


def create_controller_metrics(controller: str) -> None:
    """Create the series of a controller at 0, so that a rate has a start."""
    RECONCILE_SECONDS.labels(controller)
    QUEUE_WAIT_SECONDS.labels(controller)
    EVENTS_CONSUMED.labels(controller)
    SUPERSEDED.labels(controller)
    UNSENT_WRITES.labels(controller)
    for source in SKIPPED_SOURCES:
        SKIPPED.labels(controller, source)
    SNAPSHOT_BEHIND.labels(controller)
    for outcome in ("written", "limited", "failed"):
        KUBE_EVENTS.labels(controller, outcome)
    for state in ("ready", "delayed", "processing", "quarantined"):
        QUEUE_DEPTH.labels(controller, state)


def create_cluster_metrics(controller: str, cluster: str) -> None:
    """Create the series of a controller and cluster at 0."""
    MAP_FAILURES.labels(controller, cluster)
    REJECTED_MESSAGES.labels(controller, cluster)
    for gauge in _OF_QUEUE:
        gauge.labels(controller, cluster)
    for outcome in OUTCOMES:
        RECONCILES.labels(controller, cluster, outcome)


def drop_cluster_metrics(controller: str, cluster: str) -> None:
    """Remove the series of a cluster that left, if there are any."""
    with suppress(KeyError):
        MAP_FAILURES.remove(controller, cluster)
    with suppress(KeyError):
        REJECTED_MESSAGES.remove(controller, cluster)
    for gauge in _OF_QUEUE:
        with suppress(KeyError):
            gauge.remove(controller, cluster)
    for outcome in OUTCOMES:
        _finished.pop((controller, cluster, outcome), None)
        with suppress(KeyError):
            RECONCILES.remove(controller, cluster, outcome)
