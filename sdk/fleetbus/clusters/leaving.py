"""Leave records: which clusters were unjoined, and did not merely vanish (rule D7).

A record is a ConfigMap on the hub with the label `LEFT_LABEL`; an unjoin writes into it the UID of
the Cluster that leaves. It outlives the leave, so a cluster may come back while it is there, by
other means than a join. Then it says nothing about the next time that the cluster is absent: it
is cleared away while the cluster is a member.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

import structlog

from fleetbus.clusters.cluster import CLUSTERS
from fleetbus.errors import AlreadyExists, KubeError, NotFound
from fleetbus.kube.client import KubeClient, Object

log = structlog.get_logger()

NAMESPACE: Final = "fleetbus-system"
"""Where fleetbus lives on the hub, unless it is told otherwise."""
LEFT_LABEL: Final = "fleetbus.dev/left-cluster"
"""On the leave record: the name of the cluster that was unjoined."""
LEFT_UID: Final = "fleetbus.dev/left-cluster-uid"
"""Annotation of the leave record: the UID of the Cluster that left."""
_RECORDS: Final = "v1/configmaps"


class LeaveRecords:
    """The leave records of one hub, as one process reads them.

    Args:
        namespace: where fleetbus lives on the hub.
    """

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        # The members for which no record of an earlier time is left, and the UIDs of those records.
        self._cleared: frozenset[str] = frozenset()
        self._stale: set[str] = set()

    async def left(self, hub: KubeClient, members: Iterable[str]) -> frozenset[str]:
        """The names with a record that are no members now.

        Args:
            hub: the hub.
            members: all clusters of the fleet.

        Raises:
            KubeError: unreadable; the caller must conclude nothing from that.
        """
        present = frozenset(members)
        records = await self._list(hub)
        await self._clear(hub, records, present)
        return frozenset(
            _name_of(one)
            for one in records
            if _name_of(one) not in present and one["metadata"]["uid"] not in self._stale
        )

    async def clear(self, hub: KubeClient, members: Iterable[str]) -> None:
        """Clear the records of earlier times away, if the fleet is another than at the last call.

        Args:
            hub: the hub.
            members: all clusters of the fleet.

        Raises:
            KubeError: unreadable; to be done again.
        """
        present = frozenset(members)
        if present != self._cleared:
            await self._clear(hub, await self._list(hub), present)

    async def _list(self, hub: KubeClient) -> list[Object]:
        return await hub.list(_RECORDS, self._namespace, label_selector=LEFT_LABEL)

    async def _clear(
        self, hub: KubeClient, records: Iterable[Object], present: frozenset[str]
    ) -> None:
        for record in records:
            if _name_of(record) in present and await _is_stale(hub, record):
                await self._drop(hub, record)
        self._cleared = present

    async def _drop(self, hub: KubeClient, record: Object) -> None:
        metadata = record["metadata"]
        self._stale.add(metadata["uid"])
        log.info("leave_record_cleared", cluster=_name_of(record))
        try:
            await hub.delete(_RECORDS, self._namespace, metadata["name"], uid=metadata["uid"])
        except KubeError as e:  # it does not count in this process, and the next one tries again
            log.warning("leave_record_stays", cluster=_name_of(record), error=str(e))


async def write_record(hub: KubeClient, cluster: Object, namespace: str, manager: str) -> None:
    """Write the record of a Cluster that is about to leave.

    Args:
        hub: the hub.
        cluster: the Cluster.
        namespace: where fleetbus lives on the hub.
        manager: who writes it.

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
    except AlreadyExists:  # of an unjoin that was cut short, or of an earlier one
        await hub.patch(_RECORDS, namespace, metadata["name"], {"metadata": metadata})


async def drop_record(hub: KubeClient, name: str, namespace: str) -> None:
    """Forget that a cluster of this name left.

    Raises:
        KubeError: the hub refused.
    """
    await hub.delete(_RECORDS, namespace, f"left-{name}")


async def _is_stale(hub: KubeClient, record: Object) -> bool:
    """Whether a record of a member is of an earlier time, and not of a leave that is under way."""
    cluster = None
    with suppress(NotFound):  # this hub has no Cluster objects: others say who is in the fleet
        cluster = await hub.get(CLUSTERS, "", _name_of(record))
    if cluster is None:
        return True
    annotations = cast("dict[str, Any]", record["metadata"].get("annotations") or {})
    if LEFT_UID in annotations:
        return bool(annotations[LEFT_UID] != cluster["metadata"]["uid"])
    times = [str(one["metadata"].get("creationTimestamp", "")) for one in (record, cluster)]
    return times[0] < times[1]


def _name_of(record: Object) -> str:
    return str(record["metadata"]["labels"][LEFT_LABEL])
