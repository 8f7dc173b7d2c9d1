"""Lists the clusters of the fleet, and how fresh the snapshot of each is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from fleetbus.snapshot import (
    ClusterRecord,
    Freshness,
    ResourceRecord,
    ResourceState,
    SnapshotReader,
)
from fleetbus.snapshot.records import AgentContact
from fleetbus_proto.resources import is_built_in
from fleetbus_query_api.access.authorise import Access, Right, authorise_where_decided
from fleetbus_query_api.catalog.catalog import read_generation
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import render_freshness, render_list, render_one_freshness

_ROWS: Final = 200
"""Resources that are described before others run: a cluster may have thousands of types."""
MAX_REVIEWS: Final = 500
"""Types whose objects are counted for a user: each takes a review, of which a user has few."""


class ClusterListing:
    """Answers requests for clusters, as JSON.

    Args:
        reader: the snapshot.
        access: decides which clusters a user may see.
    """

    def __init__(self, *, reader: SnapshotReader, access: Access) -> None:
        self._reader = reader
        self._access = access

    async def list(self, user: User) -> Sequence[bytes]:
        """List the clusters that the user may see, by name; in parts.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        visible = {record.name: record for record in await self._visible(user)}
        items: dict[str, bytes] = {}
        freshness: dict[str, Freshness] = {}
        async for name, resources in self._reader.resource_records([*visible]):
            state = freshness[name] = await cluster_freshness(visible[name], resources, now)
            items[name] = msgspec.json.encode(_render(visible[name], resources, state, now))
            await asyncio.sleep(0)  # let others run
        ordered = {name: freshness[name] for name in visible}
        body = b",".join(items[name] for name in visible)
        return render_list([body], render_freshness(ordered))

    async def get(self, user: User, name: str) -> bytes:
        """Show one cluster with its resources.

        Raises:
            NotFoundProblem: it is not in the fleet, or the user may not see it.
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        await read_generation(self._reader)
        record = None
        if await self._access.authorise(user, Right("get"), [name]):
            record = await self._reader.cluster(name)
        if record is None:
            hint = "" if self._access.is_open else ", or you may not see it"
            raise NotFoundProblem(f"no cluster {name!r} is in the fleet{hint}")
        now = datetime.now(UTC)
        resources = await self._reader.resources(name)
        freshness = await cluster_freshness(record, resources, now)
        counted = self._counted(resources)
        rows: list[dict[str, Any]] = []
        for start in range(0, len(resources), _ROWS):
            part = resources[start : start + _ROWS]
            asked = [each for each in part if each.key in counted]
            counts = await self._counts(user, name, asked)
            await asyncio.sleep(0)  # let others run
            rows += [_render_resource(each, record, counts.get(each.key), now) for each in part]
        content = {
            **_render(record, resources, freshness, now),
            "resources": rows,
            "uncountedResourceCount": len(resources) - len(counted),
            **render_freshness({name: freshness}),
        }
        return msgspec.json.encode(content)

    def _counted(self, resources: Sequence[ResourceRecord]) -> Collection[str]:
        """The keys of the types whose objects are counted: built-in ones first."""
        most = len(resources) if self._access.is_open else MAX_REVIEWS
        ordered = sorted(resources, key=lambda resource: not is_built_in(resource.group))
        return {resource.key for resource in ordered[:most]}

    async def _counts(
        self, user: User, cluster: str, resources: Sequence[ResourceRecord]
    ) -> Mapping[str, int]:
        """The number of objects of each resource that the user may list (rule A2)."""
        readable: list[str] = []
        for resource in resources:
            right = Right("list", resource.group, resource.plural)
            if await authorise_where_decided(self._access, user, right, [cluster]):
                readable.append(resource.key)
        counts = await self._reader.counts(cluster, readable)
        return dict(zip(readable, counts, strict=True))

    async def _visible(self, user: User) -> Sequence[ClusterRecord]:
        records = await self._reader.clusters()
        names = [record.name for record in records]
        visible = await self._access.authorise(user, Right("list"), names)
        return [record for record in records if record.name in visible]

    async def records(
        self, user: User, name: str = ""
    ) -> Sequence[tuple[ClusterRecord, Freshness]]:
        """Read the records of the clusters that a user may see, or of one, with their freshness.

        Raises:
            StoreEmpty: the fleet is unknown (rule P13).
            UnavailableProblem: the hub does not decide.
        """
        await read_generation(self._reader)
        now = datetime.now(UTC)
        visible = [record for record in await self._visible(user) if name in {"", record.name}]
        records = self._reader.resource_records([record.name for record in visible])
        by_name = {name: resources async for name, resources in records}
        return [
            (record, await cluster_freshness(record, by_name[record.name], now))
            for record in visible
        ]


async def cluster_freshness(
    record: ClusterRecord, resources: Sequence[ResourceRecord], now: datetime
) -> Freshness:
    """The freshness of a whole cluster: that of its worst resource (rule A4)."""
    age = record.age(now)
    if reason := record.why_silent(now):
        return Freshness(ResourceState.STALE, age, is_complete=False, reason=reason)
    lacking: list[str] = []
    for start in range(0, len(resources), _ROWS):
        lacking += [
            resource.key
            for resource in resources[start : start + _ROWS]
            if not Freshness.of(resource, record, now).is_complete
        ]
        await asyncio.sleep(0)  # let others run
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
    complete = sum(Freshness.of(resource, record, now).is_complete for resource in resources)
    return {
        "name": record.name,
        "labels": record.labels,
        "hub": record.hub,
        "provider": record.provider,
        "host": record.host,
        "access": record.access,
        "agent": _render_agent(record.agent),
        "serverVersion": record.server_version,
        "platform": record.platform,
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


def _render_agent(agent: AgentContact | None) -> dict[str, Any] | None:
    if agent is None:
        return None
    return {
        "connected": agent.connected,
        "reason": agent.reason,
        "message": agent.message,
        "answeredAt": agent.answered_at,
    }


def _render_resource(
    resource: ResourceRecord, record: ClusterRecord, objects: int | None, now: datetime
) -> dict[str, Any]:
    return {
        "group": resource.group,
        "version": resource.version,
        "plural": resource.plural,
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "objects": objects,
        "lastReceived": resource.last_received,
        **render_one_freshness(Freshness.of(resource, record, now)),
    }
