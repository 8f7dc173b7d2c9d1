"""Adds to the health of a cluster why the pods of its first unhealthy workload fail (rule D21).

Pods and ReplicaSets are found in the snapshot by their owners, and Events by their namespace, so no
cluster is asked. Where they are not watched nothing is added.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

import structlog
from redis.exceptions import RedisError

from fleetbus.errors import FleetbusError
from fleetbus.kube.json_fields import mapping, string
from fleetbus.kube.trees import read_tree
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_distributor.health.fields import Tree
from fleetbus_distributor.health.pod_failures import (
    Failure,
    creation_failure,
    pod_failure,
    refused_creation,
)
from fleetbus_distributor.health.result import HealthState
from fleetbus_distributor.plan.intent import Owned
from fleetbus_distributor.targets.outcome import ClusterOutcome, earliest

log = structlog.get_logger()

LOOK_AGAIN: Final = timedelta(seconds=15)
"""A pod that begins to fail changes nothing in its workload, so no event announces it."""
_MAX_PODS: Final = 50
_MAX_REPLICA_SETS: Final = 20
_WORKLOADS: Final = frozenset(
    {
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
        ("batch", "Job"),
    }
)
_MAX_EVENTS: Final = 1000
"""Events read in a namespace, whose Events are not found by their object."""
_MAX_BYTES: Final = 2 * 1024 * 1024
"""Bytes of the objects of one list; they are parsed on the event loop, and each may have 1 MB."""
_WITHOUT_CONDITION: Final = ("StatefulSet", "DaemonSet", "Job")
_MAX_DIGITS: Final = 9
_REVISION: Final = "deployment.kubernetes.io/revision"
_UNSTARTED: Final = "Suspended", "Paused"
"""Reasons of a workload whose pods are no trouble."""


ExplainHealth: TypeAlias = Callable[[ClusterOutcome], Awaitable[None]]
"""Say more about the health of a cluster: add to the outcome of a round there; never fails."""


async def say_no_more(outcome: ClusterOutcome) -> None:
    """Leave an outcome as it is, for a process without a snapshot."""
    del outcome


class FailingPods:
    """Names the failing pod of the first unhealthy workload of a cluster.

    Args:
        reader: the snapshot.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader

    async def __call__(self, outcome: ClusterOutcome) -> None:
        """Add reason and pod to the health of a cluster."""
        health, workload = outcome.health, _first_workload(outcome)
        if health is None or workload is None or health.reason in _UNSTARTED:
            return
        outcome.retry = earliest(outcome.retry, LOOK_AGAIN)
        try:
            failure = await self._failure_of(outcome.name, workload)
        except (FleetbusError, RedisError) as error:
            log.info("pods_not_read", cluster=outcome.name, error=str(error))
            return
        except Exception:
            # What a member stores may be anything; its objects are applied all the same.
            log.exception("pods_not_understood", cluster=outcome.name)
            return
        if failure is not None and failure.message not in health.message:
            message = f"{health.message}: {failure.message}"
            outcome.health = replace(health, reason=failure.reason, message=message)

    async def _failure_of(self, cluster: str, workload: Owned) -> Failure | None:
        if workload.ref.kind != "Deployment":
            pods = await self._owned(cluster, "core/pods", workload.uid, _MAX_PODS)
            return pod_failure(pods) or await self._refusal_of(cluster, workload)
        sets = await self._owned(cluster, "apps/replicasets", workload.uid, _MAX_REPLICA_SETS)
        for replica_set in sorted(sets, key=_revision_of, reverse=True):
            uid = string(replica_set, "metadata", "uid")
            if failure := creation_failure(replica_set):
                return failure
            if failure := pod_failure(await self._owned(cluster, "core/pods", uid, _MAX_PODS)):
                return failure
        return None

    async def _refusal_of(self, cluster: str, workload: Owned) -> Failure | None:
        """Why its pods are refused, where Events are watched: no condition says so."""
        if workload.ref.kind not in _WITHOUT_CONDITION or not workload.uid:
            return None
        query = ListQuery(
            clusters=[cluster],
            resource="core/events",
            namespace=workload.ref.namespace,
            limit=_MAX_EVENTS,
            max_bytes=_MAX_BYTES,
            count=False,
        )
        return refused_creation(await self._list(query), workload.uid)

    async def _owned(self, cluster: str, resource: str, uid: str, most: int) -> Sequence[Tree]:
        if not uid:
            return ()
        query = ListQuery(
            clusters=[cluster],
            resource=resource,
            owner=uid,
            limit=most,
            max_bytes=_MAX_BYTES,
            count=False,
        )
        return await self._list(query)

    async def _list(self, query: ListQuery) -> Sequence[Tree]:
        page = await self._reader.list(query)
        trees: list[Any] = [read_tree(entry.body) for entry in page.entries if entry.body]
        return [mapping(each) for each in trees]


def _first_workload(outcome: ClusterOutcome) -> Owned | None:
    """The workload whose health is shown, if it is one that has pods."""
    health = outcome.health
    if health is None or health.state in (HealthState.HEALTHY, HealthState.MISSING):
        return None
    for (group, kind, _, _), owned in outcome.inventory.items():
        if (group, kind) in _WORKLOADS and str(owned.ref) == health.first:
            return owned
    return None


def _revision_of(replica_set: Tree) -> tuple[int, str]:
    metadata = mapping(replica_set, "metadata")
    revision = string(metadata, "annotations", _REVISION)
    is_number = revision.isdecimal() and len(revision) <= _MAX_DIGITS
    return int(revision) if is_number else 0, string(metadata, "creationTimestamp")
