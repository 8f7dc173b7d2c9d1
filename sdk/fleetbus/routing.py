"""From a changed object to the requests it wakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

import msgspec
import orjson
import structlog

from fleetbus.clusters.registry import Clusters
from fleetbus.controller import Controller, Watch
from fleetbus.errors import MalformedOwner
from fleetbus.fleet import Fleet
from fleetbus.metrics import MAP_FAILURES
from fleetbus.ownership import OWNER_ANNOTATION, SEED_OWNER_ANNOTATION, parse_owner
from fleetbus.reconcile import Request
from fleetbus.workqueue.queue import Add, Priority, encode_trigger
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb

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

    Args:
        controller: whose watches decide.
        clusters: what is known of the clusters, for label selectors and predicates.
        fleet: handed to mapping functions.
    """

    def __init__(self, controller: Controller, *, clusters: Clusters, fleet: Fleet) -> None:
        self._controller = controller
        self._clusters = clusters
        self._fleet = fleet

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
            if watch.matches(event, info):
                found += [add async for add in self._wake(watch, event, priority)]
        return found

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
        obj = cast("dict[str, Any]", orjson.loads(event.object)) if event.object else None
        try:
            return list(await watch.map(obj, own, self._fleet))
        except Exception:
            # User code: one bad object must not stop the stream for all others.
            MAP_FAILURES.labels(self._controller.name, event.cluster).inc()
            log.exception("map_failed", controller=self._controller.name, request=str(own))
            return []


def _owner_request(controller: Controller, watch: Watch, event: Event) -> Request | None:
    body = event.object
    if body is None or not any(mark in body for mark in _MARKS):
        return None
    annotations = _annotated.decode(body).metadata.annotations or {}
    text = annotations.get(OWNER_ANNOTATION) or annotations.get(SEED_OWNER_ANNOTATION)
    if not text:
        return None
    try:
        owner = parse_owner(text)
    except MalformedOwner as e:
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
