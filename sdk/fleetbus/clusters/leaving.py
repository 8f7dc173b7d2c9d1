"""Leave records: they tell clusters that were unjoined from those that vanished (rule D7).

A record is a ConfigMap on the hub with the label `LEFT_LABEL`; an unjoin writes the UID of the
leaving Cluster into it. The record stays afterwards, so the cluster may return by other means than
a join while it exists. It must not apply to a later absence, so it is deleted while the cluster is
a member. A process learns of a leave with a delay: that the Cluster is already gone does not make a
record stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, cast

import structlog

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.cluster import CLUSTERS, ClusterProvider
from fleetbus.errors import AlreadyExists, KubeError, NotFound
from fleetbus.kube.client import KubeClient, Object

log = structlog.get_logger()

NAMESPACE: Final = "fleetbus-clusters"
"""The namespace of fleetbus on the hub, by default: `clusters.namespace` of the chart."""
LEFT_LABEL: Final = "fleetbus.dev/left-cluster"
"""On the leave record: the name of the cluster that was unjoined."""
LEFT_UID: Final = "fleetbus.dev/left-cluster-uid"
"""Annotation of the leave record: the UID of the Cluster that left."""
_RECORDS: Final = "v1/configmaps"


class LeaveRecords:
    """The leave records of one hub, as one process reads them.

    Args:
        namespace: the namespace of fleetbus on the hub.
        may_delete: delete stale records, and not only ignore them.
    """

    def __init__(self, namespace: str = NAMESPACE, *, may_delete: bool = True) -> None:
        self._namespace = namespace
        self._may_delete = may_delete
        # The members without a record, and the stale records that could not be deleted.
        self._cleared: frozenset[str] = frozenset()
        self._stale: set[tuple[str, str]] = set()

    async def left(self, hub: KubeClient, members: Iterable[ClusterInfo]) -> frozenset[str]:
        """The names that have a record and are not members now.

        Args:
            hub: the hub.
            members: all clusters of the fleet.

        Raises:
            KubeError: they cannot be read; the caller must conclude nothing.
        """
        present = {info.name: info for info in members}
        records = await self._list(hub)
        await self._clear(hub, records, present)
        return frozenset(
            _name_of(record)
            for record in records
            if _name_of(record) not in present and _version_of(record) not in self._stale
        )

    async def clear(self, hub: KubeClient, members: Iterable[ClusterInfo]) -> None:
        """Delete stale records, unless the last call left none for any member.

        Args:
            hub: the hub.
            members: all clusters of the fleet.

        Raises:
            KubeError: they cannot be read; to be repeated.
        """
        present = {info.name: info for info in members}
        if present.keys() != self._cleared:
            await self._clear(hub, await self._list(hub), present)

    async def _list(self, hub: KubeClient) -> list[Object]:
        return await hub.list(_RECORDS, self._namespace, label_selector=LEFT_LABEL)

    async def _clear(
        self, hub: KubeClient, records: Iterable[Object], present: Mapping[str, ClusterInfo]
    ) -> None:
        leaving: set[str] = set()
        for record in records:
            member = present.get(_name_of(record))
            if member is not None and await _is_stale(hub, record, member):
                if self._may_delete:
                    await self._drop(hub, record)
                self._stale.add(_version_of(record))
            elif member is not None:
                leaving.add(member.name)
        self._cleared = frozenset(present.keys() - leaving)

    async def _drop(self, hub: KubeClient, record: Object) -> None:
        metadata = record["metadata"]
        uid, version = _version_of(record)
        place = (self._namespace, metadata["name"])
        try:
            # A concurrent unjoin writes its own UID into the existing record.
            await hub.delete(_RECORDS, *place, uid=uid, resource_version=version)
        except KubeError as e:  # this process ignores it, and the next one tries again
            log.warning("leave_record_not_deleted", cluster=_name_of(record), error=str(e))
        else:
            log.info("leave_record_deleted", cluster=_name_of(record))


async def write_record(hub: KubeClient, cluster: Object, namespace: str, manager: str) -> None:
    """Write the leave record of a Cluster.

    Args:
        hub: the hub.
        cluster: the Cluster.
        namespace: the namespace of fleetbus on the hub.
        manager: the field manager.

    Raises:
        KubeError: the hub refused.
    """
    name = str(cluster["metadata"]["name"])
    metadata: Object = {
        "name": f"left-{name}",
        "namespace": namespace,
        "labels": {LEFT_LABEL: name},
        "annotations": {LEFT_UID: cluster["metadata"]["uid"]},
    }
    record: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    try:
        await hub.create(_RECORDS, record, field_manager=manager)
    except AlreadyExists:  # from an interrupted or earlier unjoin
        await hub.patch(_RECORDS, namespace, metadata["name"], {"metadata": metadata})


async def drop_record(hub: KubeClient, name: str, namespace: str) -> None:
    """Delete the leave record of a name.

    Raises:
        KubeError: the hub refused.
    """
    await hub.delete(_RECORDS, namespace, f"left-{name}")


async def _is_stale(hub: KubeClient, record: Object, member: ClusterInfo) -> bool:
    """Whether a member's record is from an earlier leave, and not from one in progress."""
    cluster = None
    with suppress(
        NotFound
    ):  # this hub has no Cluster objects: the fleet comes from other providers
        cluster = await hub.get(CLUSTERS, "", member.name)
    if cluster is None:
        # If it was a Cluster, an unjoin has just deleted it, and we learn of that in a moment.
        return member.provider != ClusterProvider.name
    annotations = cast("dict[str, Any]", record["metadata"].get("annotations") or {})
    if LEFT_UID in annotations:
        return bool(annotations[LEFT_UID] != cluster["metadata"]["uid"])
    times = [str(obj["metadata"].get("creationTimestamp", "")) for obj in (record, cluster)]
    return times[0] < times[1]


def _name_of(record: Object) -> str:
    return str(record["metadata"]["labels"][LEFT_LABEL])


def _version_of(record: Object) -> tuple[str, str]:
    metadata = record["metadata"]
    return str(metadata["uid"]), str(metadata["resourceVersion"])
