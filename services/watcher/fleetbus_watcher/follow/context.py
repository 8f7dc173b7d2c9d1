"""Collaborators that the followers of a cluster share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from fleetbus.bus.key_value import KeyValue
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.list_watch.listing import WatchTarget
from fleetbus_proto.events import Incarnation
from fleetbus_proto.resources import Resource
from fleetbus_watcher.cluster_identity import ClusterIdentity
from fleetbus_watcher.errors import Unpublishable
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.grant_client import GrantClient
from fleetbus_watcher.follow.list_limits import ClusterLists
from fleetbus_watcher.follow.progress import Progress
from fleetbus_watcher.metrics import ResourceMetrics
from fleetbus_watcher.publish.checkpoint import Checkpoints
from fleetbus_watcher.publish.loss_detector import LossDetector
from fleetbus_watcher.publish.publisher import Prepared, Publisher
from fleetbus_watcher.publish.replica_name import ReplicaName
from fleetbus_watcher.reachability import Reachability
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import WatcherTiming
from fleetbus_watcher.transform.translate import Origin

log = structlog.get_logger()

CRDS: Final = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
UNKNOWN: Final = Incarnation(0, "")
"""The incarnation before the cluster is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """The collaborators and state that the work for one cluster shares."""

    settings: WatcherSettings
    timing: WatcherTiming
    client: KubeClient
    kv: KeyValue
    publisher: Publisher
    replica: ReplicaName
    loss_detector: LossDetector
    checkpoints: Checkpoints
    lists: ClusterLists
    """Limit of lists that run at once (rule W19)."""
    grants: GrantClient
    """Asks the projector for a grant before each list (rule W7)."""
    reachability: Reachability
    """Ends pauses when the API server is back (rule W19)."""
    identity: ClusterIdentity
    """Checks that the same cluster answers (rule W13)."""
    changed: asyncio.Event
    """Set when the next heartbeat should not wait."""
    types_changed: asyncio.Event
    """Set when discovery should be refreshed."""
    incarnation: Incarnation
    """Under which everything is published; `UNKNOWN` before the cluster has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceContext:
    """The collaborators and state that watches and lists of one resource and scope share."""

    cluster: ClusterContext
    target: WatchTarget
    scope: str
    """The hash of what narrows the resource; empty when all of it is watched."""
    origin: Origin
    progress: Progress
    metrics: ResourceMetrics
    backoff: ApiBackoff
    """The pauses after failures."""

    def count(self, prepared: Prepared) -> None:
        """Count an event that is about to be published."""
        self.metrics.events.inc()
        if prepared.is_degraded:
            self.metrics.degraded.inc()

    def note_change(self) -> None:
        """Refresh discovery soon if the resource is the CRDs."""
        if self.target.resource.key == CRDS.key:
            self.cluster.types_changed.set()

    def lose(self, error: Unpublishable, epoch: EpochState) -> None:
        """Mark the resource as degraded until a new epoch: an object cannot be published."""
        self.note_unreadable(error)
        epoch.lost.set()
        self.progress.lost(error.reason, str(error))

    def note_unreadable(self, error: Unpublishable) -> None:
        """Count and log an object that cannot be published."""
        self.metrics.unreadable.inc()
        self.log.error("object_unreadable", error=str(error))

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """A logger with cluster and resource bound."""
        cluster = self.cluster.settings.cluster
        return log.bind(cluster=cluster, resource=str(self.target.resource))
