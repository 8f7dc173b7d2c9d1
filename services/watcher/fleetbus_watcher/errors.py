"""What makes a watcher change its course.

WatcherError
├── ClusterReplaced     another cluster answers under this name (W13)
├── IncarnationMoved    another replica claimed a newer incarnation number (W23)
├── HistoryBroken       a new incarnation number is needed, and a list of everything (W23)
│   ├── EventsLost      the bus lost what it had stored (W9, W10)
│   └── ClusterRestored the API server's etcd was restored from a backup (W12)
├── Suspended           nothing of the cluster is to be watched until it is resumed
├── BusReturned         the bus was away; the watches start again at their checkpoints (W10)
├── EpochAbandoned      a list that must not be called complete (W8)
├── AuditAbandoned      a list of identities that may be incomplete, or is in no order (W8, W18)
├── EpochWanted         somebody asks for a relist (W20)
├── TwinLists           another replica lists the same resource now (W15)
├── TwinListed          another replica has listed it: no list of ours is needed (W15)
├── EpochOutgrown       a list is larger than it was granted for (W7)
├── PublishGivenUp      events were not acknowledged in time (B4)
└── Unpublishable       an object of which not even the key can be read (W16)
"""

from __future__ import annotations

from fleetbus.errors import ConfigError, FleetbusError, KubeError, Unauthorized
from fleetbus.watchers.grant_requests import GrantRequest
from fleetbus.watchers.spec import SUSPENDED


class WatcherError(FleetbusError):
    """The root; `reason` is what a heartbeat says."""

    reason = "Failed"


def access_reason(error: KubeError | ConfigError) -> str:
    """Why the cluster cannot be asked at all, as heartbeats say it (W19)."""
    if isinstance(error, Unauthorized):
        return "Unauthorized"
    return "Unreachable" if isinstance(error, KubeError) else "ConfigError"


class ClusterReplaced(WatcherError):
    """Another cluster answers under this name; nothing goes on until somebody consents."""

    reason = "ClusterReplaced"
    alarm = "cluster_replaced"


class IncarnationMoved(WatcherError):
    """Another replica claimed a newer incarnation number; this one must start anew."""

    reason = "IncarnationMoved"


class HistoryBroken(WatcherError):
    """What was told of the cluster no longer holds; everything is listed under a new number.

    `alarm` is what the metric of alarms calls it.
    """

    alarm = ""


class EventsLost(HistoryBroken):
    """The bus lost events that it had acknowledged: it was wiped, or set back to an older copy."""

    reason = "EventsLost"
    alarm = "events_lost"


class ClusterRestored(HistoryBroken):
    """The API server's versions fell: its etcd was restored from a backup."""

    reason = "ClusterRestored"
    alarm = "etcd_restored"


class TwinLists(WatcherError):
    """Another replica lists the same resource now; `twin` is its ask."""

    reason = "TwinLists"

    def __init__(self, twin: GrantRequest) -> None:
        super().__init__(f"replica {twin.replica} lists it")
        self.twin = twin


class TwinListed(WatcherError):
    """Another replica has listed the resource; its checkpoint is good for us too."""

    reason = "TwinListed"


class Suspended(WatcherError):
    """The hub wants nothing of the cluster to be watched."""

    reason = SUSPENDED


class BusReturned(WatcherError):
    """The bus was away, and may have lost what it acknowledged last."""

    reason = "BusReturned"


class EpochAbandoned(WatcherError):
    """The list may be incomplete, so it must not be ended: that would become deletions."""

    reason = "ListFailed"


class AuditAbandoned(WatcherError):
    """The list of an audit may be incomplete, or cannot be compared; nothing follows from it."""

    reason = "AuditFailed"


class EpochWanted(WatcherError):
    """Somebody asks for a relist."""

    reason = "Wanted"


class EpochOutgrown(WatcherError):
    """A list turns out larger than it was granted for; `bytes` is what it needs."""

    reason = "Outgrown"

    def __init__(self, size: int) -> None:
        super().__init__(f"it needs about {size} bytes of the stream, more than was granted")
        self.bytes = size


class PublishGivenUp(WatcherError):
    """Events were not acknowledged in time; the watch starts again at the low-water mark."""

    reason = "BusDown"


class Unpublishable(WatcherError):
    """Not even the key of an object can be read, or no subject can carry it."""

    reason = "Unreadable"
