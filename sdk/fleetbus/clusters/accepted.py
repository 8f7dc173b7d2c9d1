"""Which cluster a name stands for (rule W13), and which names stand for the same (rule D5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.errors import NotAccepted
from fleetbus.snapshot.read import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord

_KEPT: Final = timedelta(seconds=1)
"""So long the records of the fleet are used again: many clusters ask at the same time."""


class AcceptedClusters:
    """The accepted UID of kube-system of each cluster, as its watcher told it.

    A watcher claims a UID when a cluster joins, and another one only with somebody's consent.

    Args:
        reader: the snapshot, which holds what watchers told.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._records: dict[str, ClusterRecord] = {}
        self._aliases: Mapping[str, tuple[str, ...]] = {}
        self._read_at = float("-inf")

    async def uid(self, name: str) -> str:
        """The accepted UID of the cluster of a name; empty if no watcher has told any.

        Raises:
            NotAccepted: it cannot be looked up, or an earlier name stands for the same cluster.
        """
        await self._read()
        record = self._records.get(name)
        if record is None:
            return ""
        first = min((name, *self._aliases[name]), key=self._order)
        if first != name:
            raise NotAccepted(
                *(0, "NotAccepted"),
                f"cluster {name!r} is in the fleet as {first!r} already; nothing is done under the"
                " second name",
            )
        return record.uid

    async def aliases(self, name: str) -> tuple[str, ...]:
        """The other names of a cluster.

        Raises:
            NotAccepted: they cannot be looked up.
        """
        await self._read()
        return self._aliases.get(name, ())

    def _order(self, name: str) -> tuple[bool, int, str]:
        """By age: the number of a name's history begins as the time when it was claimed."""
        record = self._records[name]
        return not record.hub, record.incarnation, name

    async def _read(self) -> None:
        now = time.monotonic()
        if now < self._read_at + _KEPT.total_seconds():
            return
        try:
            records = await self._reader.clusters()
        except RedisError as e:
            why = f"nobody knows which clusters are accepted: the store does not answer: {e}"
            raise NotAccepted(0, "NotAccepted", why) from e
        self._records = {record.name: record for record in records}
        self._aliases = aliases_of(records)
        self._read_at = now


def aliases_of(records: Iterable[ClusterRecord]) -> dict[str, tuple[str, ...]]:
    """The other names of each cluster, by name, as the UIDs of kube-system tell them."""
    uids = {record.name: record.uid for record in records}
    names: dict[str, list[str]] = {}
    for name, uid in sorted(uids.items()):
        names.setdefault(uid, []).append(name)
    return {
        name: tuple(other for other in names[uid] if uid and other != name)
        for name, uid in uids.items()
    }
