"""Lists the clusters of the fleet, and how fresh the snapshot of each is."""

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
from fleetbus_query_api.answers.catalog import read_generation
from fleetbus_query_api.answers.problem import NotFoundProblem
from fleetbus_query_api.answers.render import render_freshness, render_list, render_one_freshness


class ClusterListing:
    """Answers requests for clusters, as JSON.

    Args:
        reader: the snapshot.
    """

    def __init__(self, *, reader: SnapshotReader) -> None:
        self._reader = reader

    async def list(self) -> bytes:
        """List all clusters, by name.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        items: list[bytes] = []
        freshness: dict[str, Freshness] = {}
        for record in await self._reader.clusters():
            resources = await self._reader.resources(record.name)
            freshness[record.name] = cluster_freshness(record, resources, now)
            items.append(
                msgspec.json.encode(_render(record, resources, freshness[record.name], now))
            )
        return render_list(items, render_freshness(freshness))

    async def get(self, name: str) -> bytes:
        """Show one cluster with its resources.

        Raises:
            NotFoundProblem: it is not in the fleet.
            StoreEmpty: the fleet is unknown (rule P13).
        """
        await read_generation(self._reader)
        record = await self._reader.cluster(name)
        if record is None:
            raise NotFoundProblem(f"no cluster {name!r} is in the fleet")
        now = datetime.now(UTC)
        resources = await self._reader.resources(name)
        freshness = cluster_freshness(record, resources, now)
        rows = [
            _render_resource(known, record, await self._reader.count(name, known.key), now)
            for known in resources
        ]
        content = {
            **_render(record, resources, freshness, now),
            "resources": rows,
            **render_freshness({name: freshness}),
        }
        return msgspec.json.encode(content)

    async def records(self, name: str = "") -> Sequence[tuple[ClusterRecord, Freshness]]:
        """Read the records of all clusters, or of one, with their freshness.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        records = await self._reader.clusters()
        return [
            (record, cluster_freshness(record, await self._reader.resources(record.name), now))
            for record in records
            if name in {"", record.name}
        ]


def cluster_freshness(
    record: ClusterRecord, resources: Sequence[ResourceRecord], now: datetime
) -> Freshness:
    """The freshness of a whole cluster: that of its worst resource (rule A4)."""
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
    record: ClusterRecord, resources: Sequence[ResourceRecord], freshness: Freshness, now: datetime
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
        "complete": freshness.is_complete,
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
