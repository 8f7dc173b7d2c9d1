"""Errors of the watcher.

WatcherError
├── ClusterReplaced        another cluster answers under this name (W13)
├── HistoryBroken          a new incarnation number and a list of everything are needed (W23)
│   ├── EventsLost         the bus lost events that it had stored (W9, W10)
│   └── ClusterRestored    the API server's etcd was restored from a backup (W12)
├── EpochAbandoned         a list that may be incomplete (W8)
├── AuditAbandoned         an audit whose list may be incomplete or unordered (W8, W18)
├── PeerReplicaLists       a peer replica is listing the same resource (W15)
├── GrantExceeded          a list is larger than its grant (W7)
├── PublishGivenUp         events were not acknowledged in time (B4)
└── Unpublishable          an object whose key cannot be read (W16)
"""

from __future__ import annotations

from fleetbus.errors import BusError, ConfigError, FleetbusError, KubeError, Unauthorized
from fleetbus.watchers.grant_requests import GrantRequest


class WatcherError(FleetbusError):
    """The root; `reason` is the reason in heartbeats."""

    reason = "Failed"


def access_reason(error: KubeError | ConfigError) -> str:
    """Return the reason in heartbeats for a cluster that cannot be reached (rule W19)."""
    if isinstance(error, Unauthorized):
        return "Unauthorized"
    return "Unreachable" if isinstance(error, KubeError) else "ConfigError"


def failure_reason(error: KubeError | WatcherError | BusError) -> str:
    """Return the reason in heartbeats for a failure of one resource, or of the bus."""
    if isinstance(error, KubeError):
        return error.reason or f"Status{error.status}"
    return error.reason if isinstance(error, WatcherError) else "BusDown"


class ClusterReplaced(WatcherError):
    """Another cluster answers under this name; the watcher waits for an operator's consent."""

    reason = "ClusterReplaced"
    alarm = "cluster_replaced"


class HistoryBroken(WatcherError):
    """Everything published so far is invalid; it is listed again under a new number.

    `alarm` is the label in the metric of alarms.
    """

    alarm = ""


class EventsLost(HistoryBroken):
    """The bus lost events that it had acknowledged: it was wiped, or reset to an older copy."""

    reason = "EventsLost"
    alarm = "events_lost"


class ClusterRestored(HistoryBroken):
    """The API server's versions went back: its etcd was restored from a backup."""

    reason = "ClusterRestored"
    alarm = "etcd_restored"


class PeerReplicaLists(WatcherError):
    """A peer replica is listing the same resource; `request` is its grant request."""

    reason = "PeerReplicaLists"

    def __init__(self, request: GrantRequest) -> None:
        super().__init__(f"replica {request.replica} lists it")
        self.request = request


class EpochAbandoned(WatcherError):
    """The list may be incomplete, so its end must not be published: it would become deletions."""

    reason = "ListFailed"


class AuditAbandoned(WatcherError):
    """The list of an audit may be incomplete or cannot be compared; nothing follows from it."""

    reason = "AuditFailed"


class GrantExceeded(WatcherError):
    """A list is larger than its grant; `bytes` is what it needs."""

    reason = "GrantExceeded"

    def __init__(self, size: int) -> None:
        super().__init__(f"it needs about {size} bytes of the stream, more than was granted")
        self.bytes = size


class PublishGivenUp(WatcherError):
    """Events were not acknowledged in time; the watch restarts at the low-water mark."""

    reason = "BusDown"


class Unpublishable(WatcherError):
    """The key of an object cannot be read, or does not fit into a subject."""

    reason = "Unreadable"
