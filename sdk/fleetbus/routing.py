"""From a changed object to the requests it wakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, Final, cast

import msgspec
import structlog
from redis.exceptions import RedisError

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.registry import Clusters
from fleetbus.controller import Controller, Watch
from fleetbus.errors import ClusterNotFound, MalformedOwner, StoreError
from fleetbus.fleet import Fleet
from fleetbus.listing import UNREADABLE
from fleetbus.metrics import MAP_FAILURES
from fleetbus.ownership import OWNER_ANNOTATION, SEED_OWNER_ANNOTATION, parse_owner
from fleetbus.reconcile import Request
from fleetbus.trees import read_tree
from fleetbus.workqueue.queue import Add, Priority, encode_trigger
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb, check_cluster

log = structlog.get_logger()

_MARKS: Final = (OWNER_ANNOTATION.encode(), SEED_OWNER_ANNOTATION.encode())


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Annotated(msgspec.Struct):
    """As much of an object as a look at its mark needs."""

    metadata: _Metadata


_annotated = msgspec.json.Decoder(_Annotated)


class Router:
    """Finds the requests of one controller for each event.

    User code runs here: mapping functions and predicates over clusters. What they raise is logged
    and counted and must not stop the stream for all others; so that nothing is lost by it, the
    event's cluster is named to `owe`, for a full enqueue later.

    Args:
        controller: whose watches decide.
        clusters: what is known of the clusters, for label selectors and predicates.
        fleet: handed to mapping functions.
        owe: told the cluster of an event for which user code failed.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        clusters: Clusters,
        fleet: Fleet,
        owe: Callable[[str], None],
    ) -> None:
        self._controller = controller
        self._clusters = clusters
        self._fleet = fleet
        self._owe = owe

    async def adds(self, events: Iterable[Event]) -> list[Add]:
        """The queue items for a batch of events, whatever the order guard said of them (P8)."""
        return [add for event in events for add in await self._adds_of(event)]

    async def full(self, event: Event) -> list[Add]:
        """The items for an object of the snapshot, at the priority of a first list (P12)."""
        return [
            # No trigger: a full enqueue names what is known, not what has just changed.
            Add(add.request, Priority.INITIAL)
            for add in await self._adds_of(event)
        ]

    async def _adds_of(self, event: Event) -> list[Add]:
        info = self._clusters.get(event.cluster)
        priority = Priority.INITIAL if event.verb is Verb.LISTED else Priority.LIVE
        found: list[Add] = []
        for watch in self._controller.watches:
            if self._matches(watch, event, info):
                found += [add async for add in self._wake(watch, event, priority)]
        return found

    def _matches(self, watch: Watch, event: Event, info: ClusterInfo | None) -> bool:
        try:
            return watch.matches(event, info)
        except Exception as e:  # noqa: BLE001 -- user code, a predicate over clusters
            self._note_failure("predicate_failed", event, e)
            return False

    async def _wake(self, watch: Watch, event: Event, priority: Priority) -> AsyncIterator[Add]:
        own = self._controller.request(event.cluster, event.namespace, event.name)
        if watch.owned:
            if owner := _owner_request(self._controller, watch, event):
                yield Add(owner, priority)
        elif watch.map is None:
            trigger = encode_trigger(event.incarnation.number, event.resource_version)
            yield Add(own, priority, trigger)
        else:
            for request in await self._mapped(watch, event, own):
                yield Add(request, priority)

    async def _mapped(self, watch: Watch, event: Event, own: Request) -> list[Request]:
        if watch.map is None:
            return []
        try:
            obj = cast("dict[str, Any]", read_tree(event.object)) if event.object else None
            async with asyncio.timeout(self._controller.timeout.total_seconds()):
                found = list(await watch.map(obj, own, self._fleet))
            return [self._checked(request) for request in found]
        except (RedisError, StoreError):
            raise  # the store is away: the batch is kept, and nothing is acknowledged (P9)
        except ClusterNotFound as e:
            log.info("cluster_left", controller=self._controller.name, reason=str(e))
        except Exception as e:  # noqa: BLE001 -- user code, and one bad object must not stop all
            self._note_failure("map_failed", event, e)
        return []

    def _checked(self, request: Request) -> Request:
        """A request as the queue can hold it; user code may have built it from anything."""
        _check_place(request.cluster, request.namespace)
        return replace(request, controller=self._controller.name)

    def _note_failure(self, what: str, event: Event, error: Exception) -> None:
        name = self._controller.name
        MAP_FAILURES.labels(name, event.cluster).inc()
        log.error(
            what,
            exc_info=error,
            controller=name,
            cluster=event.cluster,
            namespace=event.namespace,
            name=event.name,
        )
        self._owe(event.cluster)


def _check_place(cluster: str, namespace: str) -> None:
    """An item of the queue is taken apart at its first two slashes."""
    check_cluster(cluster)
    if "/" in namespace:
        raise InvalidName(f"{namespace!r} is not a namespace")


def _owner_request(controller: Controller, watch: Watch, event: Event) -> Request | None:
    body = event.object
    if body is None or not any(mark in body for mark in _MARKS):
        return None
    try:
        annotations = _annotated.decode(body).metadata.annotations or {}
        text = annotations.get(OWNER_ANNOTATION) or annotations.get(SEED_OWNER_ANNOTATION)
        if not text:
            return None
        owner = parse_owner(text)
        _check_place(owner.cluster_name, owner.namespace)
    except (MalformedOwner, InvalidName, *UNREADABLE) as e:
        # Anyone may write an annotation; what cannot be read wakes nobody.
        log.warning(
            "owner_unreadable",
            controller=controller.name,
            cluster=event.cluster,
            namespace=event.namespace,
            name=event.name,
            error=str(e),
        )
        return None
    if watch.owner_kind and owner.kind != watch.owner_kind:
        return None
    return controller.request(owner.cluster_name, owner.namespace, owner.name)
