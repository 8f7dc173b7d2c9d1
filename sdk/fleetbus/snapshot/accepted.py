"""Which cluster a name stands for (rule W13), and which names stand for the same (rule D5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from redis.exceptions import RedisError

from fleetbus.errors import NotAccepted
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ClusterRecord

_KEPT: Final = timedelta(seconds=1)
"""So long the records of the fleet are used again: many clusters ask at the same time."""


class AcceptedClusters:
    """The accepted UID of kube-system of each cluster, as the projector keeps it.

    It changes only by what the hub has read itself, or by somebody's consent. Of a cluster that
    the hub has not read yet it is what the watcher told first.

    Args:
        reader: the snapshot, which holds the accepted UIDs.
    """

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self._records: dict[str, ClusterRecord] = {}
        self._aliases: Mapping[str, tuple[str, ...]] = {}
        self._read_at = float("-inf")

    async def uid(self, name: str) -> str:
        """The accepted UID of the cluster of a name; empty if none is known.

        Raises:
            NotAccepted: it cannot be looked up, or an earlier name stands for the same cluster.
        """
        await self._read()
        record = self._records.get(name)
        if record is None:
            return ""
        first = min((self._records[other] for other in (name, *self._aliases[name])), key=_order)
        if first.name != name:
            raise NotAccepted(
                *(0, "NotAccepted"),
                f"cluster {name!r} is in the fleet as {first.name!r} already; nothing is done under"
                " the second name",
            )
        return record.uid

    async def aliases(self, name: str) -> tuple[str, ...]:
        """The other names of a cluster.

        Raises:
            NotAccepted: they cannot be looked up.
        """
        await self._read()
        return self._aliases.get(name, ())

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
    """The other names of each cluster, by name, as the UIDs of kube-system tell them.

    What a watcher has told, and the hub has not read itself, does an earlier name no harm: only the
    later name is told of.
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
    """The hub first, then what the hub has read itself, then by age."""
    return not record.hub, not record.uid_verified, record.uid_since, record.name
