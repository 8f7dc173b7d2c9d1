"""The accepted UID of each cluster (rule W13), and names that share one (rule D5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.errors import NotAccepted
from fleetbus.kube.connection.identity import SharedCheck
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord

_KEPT: Final = timedelta(seconds=1)


class AcceptedClusters:
    """The accepted UID of kube-system of each cluster, as recorded by the projector.

    It changes only by what the hub has read itself, or by consent. For a cluster that the hub has
    not read yet it is the first one that its watcher reported.

    Args:
        reader: the snapshot, which holds the accepted UIDs.
        kept: how long the records are cached: many clusters are looked up at the same time.
    """

    def __init__(self, reader: SnapshotReader, *, kept: timedelta = _KEPT) -> None:
        self._kept = kept
        self._reader = reader
        self._records: dict[str, ClusterRecord] = {}
        self._is_read = False
        """Whether the records of every shard were read once."""
        self._aliases: Mapping[str, tuple[str, ...]] = {}
        self._reading = SharedCheck(self._read_records)

    async def uid(self, name: str) -> str:
        """Return the accepted UID of a cluster; empty if none is known.

        Raises:
            NotAccepted: it cannot be read, or the cluster is in the fleet under an earlier name.
        """
        await self._read()
        record = self._records.get(name)
        if record is None:
            return ""
        first = min((self._records[other] for other in (name, *self._aliases[name])), key=_order)
        if first.name != name:
            raise NotAccepted(
                *(0, "NotAccepted"),
                f"cluster {name!r} is already in the fleet as {first.name!r}; nothing is done under"
                " the second name",
            )
        return record.uid

    async def aliases(self, name: str) -> tuple[str, ...]:
        """Return the other names of a cluster.

        Raises:
            NotAccepted: they cannot be read.
        """
        await self._read()
        return self._aliases.get(name, ())

    async def _read(self) -> None:
        """Read the records if they are old, once for all clusters that are looked up meanwhile."""
        await self._reading.run_since(time.monotonic() - self._kept.total_seconds())

    async def _read_records(self) -> None:
        why = "the accepted clusters cannot be read: the store does not answer"
        try:
            clusters = await self._reader.available_clusters()
        except RedisError as e:
            raise NotAccepted(0, "NotAccepted", f"{why}: {e}") from e
        if clusters.away and not self._is_read:  # any cluster may have a second name there
            raise NotAccepted(0, "NotAccepted", f"{why}: a part of it is away")
        # Of a shard that is away now the records of before count.
        earlier = [record for record in self._records.values() if clusters.is_away(record.name)]
        self._is_read = True
        self._records = {record.name: record for record in (*earlier, *clusters.records)}
        self._aliases = aliases_of(self._records.values())


def aliases_of(records: Iterable[ClusterRecord]) -> dict[str, tuple[str, ...]]:
    """Find the other names of each cluster by the UIDs of kube-system.

    A UID that a watcher reported and the hub has not read itself does not harm an earlier name:
    only the later name gets it as an alias.
    """
    groups: dict[str, list[ClusterRecord]] = {}
    for record in sorted(records, key=lambda record: record.name):
        groups.setdefault(record.uid, []).append(record)
    return {
        record.name: tuple(
            other.name for other in group if uid and other is not record and _counts(other, record)
        )
        for uid, group in groups.items()
        for record in group
    }


def _counts(other: ClusterRecord, record: ClusterRecord) -> bool:
    return other.uid_verified or _order(other) < _order(record)


def _order(record: ClusterRecord) -> tuple[bool, bool, int, str]:
    """The hub first, then UIDs that the hub has read itself, then by age."""
    return not record.hub, not record.uid_verified, record.uid_since, record.name
