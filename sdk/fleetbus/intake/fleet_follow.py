"""Enqueues everything again when the fleet itself changes.

What a controller writes often depends on which clusters exist. No object changes when one joins,
leaves or is relabelled, so no event wakes the requests that have to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from redis.exceptions import RedisError

from fleetbus.controller.filters import read_metadata
from fleetbus.errors import FleetbusError
from fleetbus.kube.trees import read_tree
from fleetbus.process.cancellation import is_stop
from fleetbus.process.error_text import render
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority

if TYPE_CHECKING:
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.controller.controller import Controller
    from fleetbus.controller.watch import Watch
    from fleetbus.fleet.fleet import Fleet
    from fleetbus.kube.client import Object
    from fleetbus.snapshot.reads.entries import Entry
    from fleetbus.workqueue.queue import Queue

log = structlog.get_logger()

_CHECK_EVERY: Final = timedelta(milliseconds=500)
_PAGE: Final = 500


def background_loops(
    controller: Controller, queue: Queue, fleet: Fleet
) -> list[Coroutine[Any, Any, None]]:
    """The loops of a controller that run beside its workers in each process, until cancelled."""
    follow = [follow_fleet(controller, queue, fleet)] if controller.follow_fleet else []
    return [*follow, *controller.background_loops(queue, fleet)]


async def follow_fleet(
    controller: Controller, queue: Queue, fleet: Fleet, *, check_every: timedelta = _CHECK_EVERY
) -> None:
    """Enqueue the objects of the controller's identity watches after each change of the fleet.

    The fleet as it is at the start is left to the initial sync.
    """
    before: list[ClusterInfo] | None = None
    while True:
        now = fleet.clusters() if fleet.is_known else before
        if before is not None and now is not None and now != before:
            try:
                await enqueue_known(controller, queue, fleet)
            except (FleetbusError, RedisError, WorkqueueError) as e:
                # The store is away: the next turn finds the same change.
                log.warning("fleet_change_waits", controller=controller.name, error=str(e))
                now = before
        before = now
        await asyncio.sleep(check_every.total_seconds())


async def enqueue_known(controller: Controller, queue: Queue, fleet: Fleet) -> None:
    """Enqueue every object of the identity watches that the snapshot has.

    Raises:
        redis.exceptions.RedisError: the store is away.
        FleetbusError: the store was emptied.
        WorkqueueError: the queue is away.
    """
    for watch in controller.watches:
        if watch.is_identity and watch.resource is not None:
            names = [i.name for i in fleet.clusters() if _is_of(controller, watch, i)]
            await _enqueue(controller, watch, queue, fleet, names)


async def _enqueue(
    controller: Controller, watch: Watch, queue: Queue, fleet: Fleet, names: Iterable[str]
) -> None:
    if watch.resource is None:
        return
    query = ListQuery(
        clusters=list(names),
        resource=watch.resource.key,
        labels=watch.selector or None,  # the index has no objects without a body
        limit=_PAGE,
        count=False,
    )
    async for page in fleet.reader.pages(query):
        entries = [entry for entry in page.entries if _is_wanted(controller, watch, entry)]
        if entries:
            requests = [controller.request(e.cluster, e.namespace, e.name) for e in entries]
            await queue.add([Add(request, Priority.INITIAL) for request in requests])


def _is_of(controller: Controller, watch: Watch, info: ClusterInfo) -> bool:
    try:
        return watch.clusters.test(info.name, info)
    except BaseException as e:  # user code: one bad cluster stops nobody
        if is_stop(e):
            raise
        return _in_doubt(controller, e, cluster=info.name)


def _is_wanted(controller: Controller, watch: Watch, entry: Entry) -> bool:
    """Whether an object passes the filters that no index covers; without a body it does (P8)."""
    if watch.namespaces is not None and entry.namespace not in watch.namespaces:
        return False
    if not entry.body:
        return True
    place = {"cluster": entry.cluster, "namespace": entry.namespace, "name": entry.name}
    try:
        is_match = watch.annotation_selector.matches(read_metadata(entry.body).annotations)
        if not is_match or watch.predicate is None:
            return is_match
        return watch.passes(None, cast("Object", read_tree(entry.body)))
    except BaseException as e:  # user code: one bad object stops nobody
        if is_stop(e):
            raise
        return _in_doubt(controller, e, **place)


def _in_doubt(controller: Controller, error: BaseException, **place: str) -> bool:
    """Log it and answer yes: a run too many does no harm (rule P8)."""
    exception = render(error, is_quiet=controller.handles_secrets)
    log.error("filter_failed", exception=exception, controller=controller.name, **place)
    return True
