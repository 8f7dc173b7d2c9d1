"""Answers questions for the clusters of the fleet: who they are, how fresh our view of each is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from fleetbus.snapshot import (
    ClusterRecord,
    Freshness,
    ResourceRecord,
    ResourceState,
    SnapshotReader,
)
from fleetbus_query_api.answers.errors import NotFound
from fleetbus_query_api.answers.render import render_freshness, render_list, render_one_freshness
from fleetbus_query_api.answers.store import read_generation


class FleetView:
    """Answers questions for clusters, as JSON.

    Args:
        reader: the snapshot.
    """

    def __init__(self, *, reader: SnapshotReader) -> None:
        self._reader = reader

    async def list(self) -> bytes:
        """All clusters, by name.

        Raises:
            StoreEmpty: nobody can tell (rule P13).
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        items: list[bytes] = []
        judged: dict[str, Freshness] = {}
        for record in await self._reader.clusters():
            resources = await self._reader.resources(record.name)
            judged[record.name] = judge(record, resources, now)
            items.append(msgspec.json.encode(_render(record, resources, judged[record.name], now)))
        return render_list(items, render_freshness(judged))

    async def get(self, name: str) -> bytes:
        """One cluster with its resources.

        Raises:
            NotFound: it is not in the fleet.
            StoreEmpty: nobody can tell (rule P13).
        """
        await read_generation(self._reader)
        record = await self._reader.cluster(name)
        if record is None:
            raise NotFound(f"no cluster {name!r} is in the fleet")
        now = datetime.now(UTC)
        resources = await self._reader.resources(name)
        judged = judge(record, resources, now)
        rows = [
            _render_resource(known, record, await self._reader.count(name, known.key), now)
            for known in resources
        ]
        content = {
            **_render(record, resources, judged, now),
            "resources": rows,
            **render_freshness({name: judged}),
        }
        return msgspec.json.encode(content)

    async def records(self, name: str = "") -> Sequence[tuple[ClusterRecord, Freshness]]:
        """The records of all clusters, or of one, and how far each can be relied on.

        Raises:
            StoreEmpty: nobody can tell (rule P13).
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        records = await self._reader.clusters()
        return [
            (record, judge(record, await self._reader.resources(record.name), now))
            for record in records
            if name in {"", record.name}
        ]


def judge(record: ClusterRecord, resources: Sequence[ResourceRecord], now: datetime) -> Freshness:
    """How far a cluster as a whole can be relied on: no further than the worst of it (rule A4)."""
    age = record.age(now)
    if reason := record.why_silent(now):
        return Freshness(ResourceState.STALE, age, is_complete=False, reason=reason)
    lacking = [known.key for known in resources if not Freshness.of(known, record, now).is_complete]
    if lacking or not resources:
        reason = f"not complete: {_shorten(lacking)}" if lacking else "no resource is known yet"
        return Freshness(ResourceState.LISTING, age, is_complete=False, reason=reason)
    return Freshness(ResourceState.SYNCED, age, is_complete=True, reason="")


def _shorten(names: Sequence[str], at_most: int = 3) -> str:
    more = f" and {len(names) - at_most} more" if len(names) > at_most else ""
    return f"{', '.join(names[:at_most])}{more}"


def _render(
    record: ClusterRecord, resources: Sequence[ResourceRecord], judged: Freshness, now: datetime
) -> dict[str, Any]:
    complete = sum(Freshness.of(known, record, now).is_complete for known in resources)
    return {
        "name": record.name,
        "labels": record.labels,
        "hub": record.hub,
        "provider": record.provider,
        "host": record.host,
        "serverVersion": record.server_version,
        "connected": record.connected,
        "reason": record.reason,
        "message": record.message,
        "lastAnswer": record.last_answer,
        "reportedAt": record.reported_at,
        "joinedAt": record.joined_at,
        "complete": judged.is_complete,
        "resourceCount": len(resources),
        "completeResourceCount": complete,
    }


def _render_resource(
    known: ResourceRecord, record: ClusterRecord, objects: int, now: datetime
) -> dict[str, Any]:
    return {
        "group": known.group,
        "version": known.version,
        "plural": known.plural,
        "kind": known.kind,
        "namespaced": known.namespaced,
        "objects": objects,
        "lastReceived": known.last_received,
        **render_one_freshness(Freshness.of(known, record, now)),
    }
