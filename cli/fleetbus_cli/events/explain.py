"""Runs `fleetbus explain`: gathers what the bus, the snapshot and the queues know of one object.

It reads NATS and Redis directly, so it works while every service is down; without NATS it shows
what Redis has. Of the object's content it shows nothing but the owner, and of a
MultiClusterResource what its status says of clusters that are not well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import orjson
from redis.exceptions import RedisError

from fleetbus.bus.connection import Bus
from fleetbus.bus.durables import filters_for
from fleetbus.bus.reader_groups import filters_of, is_running
from fleetbus.errors import BusError, ConfigError, MalformedOwner, StoreError
from fleetbus.intake.last_runs import LastRuns
from fleetbus.intake.record import StoredRecord, mapped_requests, read_stored
from fleetbus.kube.json_fields import Tree, mapping
from fleetbus.kube.resource_names import with_plural
from fleetbus.ownership import owner_of
from fleetbus.process import printer
from fleetbus.process.access.nats import NatsAccess
from fleetbus.process.access.store import StoreAccess
from fleetbus.process.human_time import render_time
from fleetbus.reconcile import Request
from fleetbus.run.current import ObjectRef, Version
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord
from fleetbus.snapshot.shards import find_shards
from fleetbus.workqueue.controllers import list_controllers
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.items import ItemStatus, read_item
from fleetbus_cli.documents import render_json
from fleetbus_cli.events.events import parse_since
from fleetbus_cli.events.explain_text import (
    is_unconcerned,
    is_unknown,
    render,
    summarize,
    with_summary,
)
from fleetbus_cli.events.history import read_events
from fleetbus_cli.events.troubles import KIND as MULTI_CLUSTER_RESOURCE
from fleetbus_cli.events.troubles import RESOURCE as MULTI_CLUSTER_RESOURCES
from fleetbus_cli.events.troubles import read_troubles
from fleetbus_cli.nats import connect_nats
from fleetbus_cli.store import connect_store
from fleetbus_cli.target import resolve_target
from fleetbus_cli.unknown import unknown, unknown_cluster
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_proto.resources import Resource, ResourceName, parse_resource_name
from fleetbus_proto.subjects import check_cluster, events_filter

if TYPE_CHECKING:
    from redis.asyncio import Redis

View = dict[str, Any]

_SHOWN: Final = 8
"""Number of changes shown: the last ones."""
_IDLE: Final = ItemStatus(failures=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainQuery:
    """Selects the object, and the format."""

    cluster: str
    resource: ResourceName
    namespace: str
    name: str
    controller: str
    since: timedelta
    output: str

    @classmethod
    def read(
        cls, *, cluster: str, resource: str, name: str, controller: str, since: str, output: str
    ) -> Self:
        """Check the arguments.

        Raises:
            ConfigError: one of them is invalid.
        """
        namespace, _, last = name.rpartition("/")
        if not last or "/" in namespace:
            raise ConfigError(
                f"{name!r} is neither NAMESPACE/NAME nor the NAME of a cluster-scoped object"
            )
        try:
            resource_name = with_plural(parse_resource_name(resource.lower())[0])
            check_cluster(cluster)
        except InvalidName as e:
            raise ConfigError(str(e)) from e
        return cls(
            cluster=cluster,
            resource=resource_name,
            namespace=namespace,
            name=last,
            controller=controller,
            since=parse_since(since),
            output=output,
        )


def explain_object(query: ExplainQuery, *, nats_url: str | None, redis_url: str | None) -> int:
    """Print the page or JSON; return the exit status.

    It is 1 if a store cannot be read, or if nothing is known of such an object.

    Raises:
        UnknownName: the cluster, the resource or the controller is unknown.
        ConfigError: an address is not set.
    """
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    store, nats = target.require_store(), target.require_nats()

    async def main() -> int:
        view = await gather(query, store=store, nats=nats)
        if query.output == "json":
            printer.json_text(render_json(view))
        else:
            printer.block(render(view))
        return int(is_unknown(view))

    try:
        return asyncio.run(main())
    except (StoreError, BusError, QueueUnavailableError, RedisError, OSError) as e:
        printer.note(f"fleetbus: {e}")
        return 1


async def gather(query: ExplainQuery, *, store: StoreAccess, nats: NatsAccess) -> View:
    """Gather everything about an object; durations in seconds, times in RFC 3339.

    Raises:
        UnknownName: the cluster or the resource is unknown.
        StoreError: Redis cannot be read.
    """
    redis: Any = await connect_store(store)
    async with redis, _bus(nats) as (bus, why):
        return await _Gatherer(query, redis, await find_shards(redis), bus).gather(why)


@asynccontextmanager
async def _bus(access: NatsAccess) -> AsyncGenerator[tuple[Bus | None, str]]:
    """Yield a connection; or None, and why there is none."""
    async with AsyncExitStack() as stack:
        try:
            connecting = connect_nats(access, name="fleetbus-explain")
            bus = await stack.enter_async_context(connecting)
        except BusError as e:
            connection = None, str(e)
        else:
            connection = bus, ""
        yield connection


class _Gatherer:
    def __init__(
        self, query: ExplainQuery, redis: Redis, keys: SnapshotKeys, bus: Bus | None
    ) -> None:
        self._query = query
        self._redis = redis
        self._bus = bus
        self._reader = SnapshotReader(redis, keys)

    async def gather(self, why_no_bus: str) -> View:
        """See `gather` above."""
        query = self._query
        resource = await self._resource()
        tree = await self._tree(query.cluster, resource.key, query.namespace, query.name)
        owner = self._owner(tree)
        view: View = {
            "cluster": query.cluster,
            "resource": resource.key,
            "namespace": query.namespace,
            "name": query.name,
            "bus": why_no_bus,
            "since": query.since.total_seconds(),
            "changes": await self._changes(resource),
            "snapshot": await self._snapshot(resource),
            "owner": owner,
            "troubles": await self._troubles(resource, tree, owner),
        }
        names = await self._controllers(resource)
        running = await asyncio.gather(*map(self._is_running, names))
        view["controllers"] = [
            entry
            for name, is_up in zip(names, running, strict=True)
            for entry in await self._controller(name, view, is_up=is_up)
        ]
        view["summary"] = summarize(view)
        return view

    async def _resource(self) -> Resource:
        """Find the resource as the cluster serves it.

        Raises:
            UnknownName: the resource or the cluster is unknown.
            ConfigError: the name is ambiguous.
        """
        name, cluster = self._query.resource, self._query.cluster
        if await self._reader.cluster(cluster) is None:
            raise unknown_cluster(
                cluster, [record.name for record in await self._reader.clusters()]
            )
        records = await self._reader.resources(cluster)
        fitting = [
            record
            for record in records
            if record.plural == name.plural and name.group in (None, record.group)
        ]
        if len(fitting) == 1:
            _check_place(self._query, fitting[0])
            return Resource(fitting[0].group, fitting[0].version, fitting[0].plural)
        if fitting:
            both = " and ".join(record.key for record in fitting)
            raise ConfigError(f"{name.plural!r} is ambiguous: {both}")
        message = f"resource {name.plural!r} is not watched in cluster {cluster!r}"
        raise unknown(message, name.plural, [record.plural for record in records])

    async def _changes(self, resource: Resource) -> list[View]:
        if self._bus is None:
            return []
        query = self._query
        subject = events_filter(
            cluster=query.cluster,
            group=resource.group,
            resource=resource.plural,
            namespace=query.namespace,
            name=query.name,
        )
        start = datetime.now(UTC) - query.since
        last: deque[View] = deque(maxlen=_SHOWN)
        async for event, stored in read_events(self._bus, subject=subject, start=start):
            if event.namespace == query.namespace:
                last.append(_change(event, stored.sequence.stream, stored.timestamp))
        return list(last)

    async def _snapshot(self, resource: Resource) -> View:
        query = self._query
        place = (query.namespace, query.name)
        states = await self._reader.known(query.cluster, resource.key, [place])
        state = states.get(place)
        freshness = await self._reader.freshness(
            [query.cluster], resource.key, namespace=query.namespace
        )
        fresh = freshness[query.cluster]
        return {
            "state": "absent" if state is None else "live" if state.is_live else "deleted",
            "incarnation": state.entry.incarnation if state else None,
            "resourceVersion": state.entry.resource_version if state else "",
            "degraded": state.entry.degraded if state else "",
            "freshness": fresh.state.value,
            "ageSeconds": fresh.age.total_seconds() if fresh.age is not None else None,
            "complete": fresh.is_complete,
            "reason": fresh.reason,
        }

    def _owner(self, tree: Tree) -> View | None:
        """Return the owner named by the owner mark: controllers run for it, not for this object."""
        try:
            owner = owner_of(tree)
        except MalformedOwner:
            return None
        if owner is None:
            return None
        return {
            "cluster": owner.cluster_name,
            "kind": owner.kind,
            "namespace": owner.namespace,
            "name": owner.name,
        }

    async def _troubles(self, resource: Resource, tree: Tree, owner: View | None) -> list[View]:
        """Where the MultiClusterResource is not well: the object itself, or its owner."""
        if resource.key == MULTI_CLUSTER_RESOURCES:
            return read_troubles(tree)
        if owner is None or owner["kind"] != MULTI_CLUSTER_RESOURCE:
            return []
        place = (owner["cluster"], MULTI_CLUSTER_RESOURCES, owner["namespace"], owner["name"])
        return read_troubles(await self._tree(*place), self._query.cluster)

    async def _tree(self, cluster: str, resource: str, namespace: str, name: str) -> Tree:
        """The object as it is in the snapshot; empty if it is not there."""
        body = await self._reader.body(cluster, resource, namespace, name)
        try:
            return mapping(orjson.loads(body)) if body else {}
        except orjson.JSONDecodeError:
            return {}

    # --- controllers ----------------------------------------------------------------------------

    async def _controllers(self, resource: Resource) -> Sequence[str]:
        """Those that watch the resource, or the one that is asked for.

        Raises:
            UnknownName: that one is not known here.
        """
        registered = await filters_of(self._bus) if self._bus else {}
        if controller := self._query.controller:
            controllers = {*registered, *await list_controllers(self._redis)}
            if controller not in controllers:
                raise unknown(f"there is no controller {controller!r}", controller, controllers)
            return [controller]
        if self._bus is None:
            return await list_controllers(self._redis)
        filters = {*filters_for([resource]), *filters_for([None])}
        return [name for name in sorted(registered) if not filters.isdisjoint(registered[name])]

    async def _is_running(self, controller: str) -> bool | None:
        """Whether a process of a controller runs; None without NATS."""
        return await is_running(self._bus, controller) if self._bus is not None else None

    async def _controller(self, name: str, view: View, *, is_up: bool | None) -> list[View]:
        """Describe the requests that this object triggers: its own and those of a `map`.

        Its own is left out if the controller handles the object only through a `map`.
        """
        query = self._query
        ref = ObjectRef(query.cluster, view["resource"], query.namespace, query.name)
        own_request = Request(name, query.cluster, query.namespace, query.name)
        description = await self._request(own_request)
        # Read after the last run: the record is written before a run ends, so it is not older.
        record = await read_stored(self._redis, name, ref)
        description["reconciled"] = _version(record.read)
        mapped, is_cut = mapped_requests(name, record)
        is_live = view["snapshot"]["state"] == "live"
        if is_live and own_request not in mapped and not _names_itself(record):
            # The request of this name is that of another object, such as its namesake's owner.
            description = _description(own_request)
        description |= {
            "running": is_up,
            "seen": _version(record.last_seen.version if record.last_seen else None),
        }
        described = with_summary(description, view["snapshot"])
        others = [
            with_summary(await self._request(request), view["snapshot"], is_mapped=True)
            for request in mapped
            if request != own_request
        ]
        if is_cut:
            return [{**described, "moreRequests": True}, *others]
        return others if others and is_unconcerned(described) else [described, *others]

    async def _request(self, request: Request) -> View:
        standing = await read_item(self._redis, request)
        last = await LastRuns(self._redis, request.controller).get(request)
        run: View | None = None
        if last is not None:
            run = {
                "outcome": last.outcome.value,
                "attempt": last.attempt,
                "endedAt": render_time(last.ended),
                "queuedAt": render_time(last.queued),
                "waitedSeconds": round(max(0.0, last.started - last.queued), 6),
                "ranSeconds": round(last.ended - last.started, 6),
                "worker": last.worker,
                "error": last.error,
            }
        return _description(request, standing, run)


def _names_itself(record: StoredRecord) -> bool:
    """Whether the object matches, or matched, a watch whose requests name the object itself."""
    last_seen = record.last_seen
    is_seen = last_seen is not None and (last_seen.is_member or last_seen.is_left)
    return is_seen or record.read is not None


def _version(version: Version | None) -> View | None:
    return {"incarnation": version[0], "resourceVersion": version[1]} if version else None


def _description(
    request: Request, standing: ItemStatus = _IDLE, last_run: View | None = None
) -> View:
    return {
        "controller": request.controller,
        "request": {
            "cluster": request.cluster,
            "namespace": request.namespace,
            "name": request.name,
        },
        "state": standing.state,
        "failures": standing.failures,
        "waitingSeconds": _seconds(standing.waiting),
        "priority": standing.priority.name.lower() if standing.priority is not None else None,
        "worker": standing.worker,
        "runningSeconds": _seconds(standing.running),
        "leaseSeconds": _seconds(standing.lease),
        "dueInSeconds": _seconds(standing.due_in),
        "quarantineSeconds": _seconds(standing.quarantine),
        "quarantines": standing.quarantines,
        "breakerSeconds": _seconds(standing.breaker),
        "outageFailures": standing.outage,
        "running": None,
        "seen": None,
        "reconciled": None,
        "lastRun": last_run,
    }


def _check_place(query: ExplainQuery, record: ResourceRecord) -> None:
    """Check that a namespace is given exactly for a namespaced resource.

    Raises:
        ConfigError: it is missing, or one too many.
    """
    if record.namespaced and not query.namespace:
        raise ConfigError(f"{record.plural} are namespaced: use NAMESPACE/{query.name}")
    if query.namespace and not record.namespaced:
        raise ConfigError(f"{record.plural} are cluster-scoped: use {query.name}")


def _change(event: Event, sequence: int, stored: datetime) -> View:
    observed = datetime.fromisoformat(event.observed_at)
    return {
        "sequence": sequence,
        "verb": event.verb.value,
        "resourceVersion": event.resource_version,
        "observedAt": event.observed_at,
        "storedAt": stored.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "storedAfterSeconds": round((stored - observed).total_seconds(), 6),
    }


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()
