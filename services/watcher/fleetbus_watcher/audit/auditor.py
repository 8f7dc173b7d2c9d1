"""Audits: now and then a list of the identities of each resource, published in pages (rule W18).

Even a watch that is followed without a fault misses what the API server forgets to tell. The
projector compares the pages with the snapshot; here nothing is compared and nothing is kept. An
audit that fails on the way has no last page, and so nothing follows from it (W8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Final, NoReturn, Protocol

import structlog

from fleetbus.errors import BusError, KubeError
from fleetbus.kube.connection.backoff import RequestBackoff
from fleetbus.kube.listing import ListPage, list_pages
from fleetbus.process.clock import utc_now
from fleetbus.watchers.resync import read_audit_request
from fleetbus_proto.events import AuditPage, Rank
from fleetbus_watcher import metrics
from fleetbus_watcher.audit.pages import Paginator, Part, read_identity
from fleetbus_watcher.audit.schedule import Plan
from fleetbus_watcher.errors import (
    AuditAbandoned,
    ClusterReplaced,
    HistoryBroken,
    WatcherError,
)
from fleetbus_watcher.follow.resource_watcher import ResourceWatcher, Surroundings
from fleetbus_watcher.server_checks import check_list

log = structlog.get_logger()

_LOOK: Final = timedelta(seconds=60)
"""How soon a new resource, or a request of which no message told, is noticed."""


class Watched(Protocol):
    """A resource that is followed."""

    @property
    def watcher(self) -> ResourceWatcher:
        """By whom."""
        ...


class Auditor:
    """Audits everything that is watched of one cluster, one resource after the other.

    Args:
        around: what all resources share.
        watched: answers what is followed now.
        woken: set when somebody may have asked for an audit.
    """

    def __init__(
        self,
        around: Surroundings,
        watched: Callable[[], Iterable[Watched]],
        woken: asyncio.Event,
    ) -> None:
        self._around = around
        self._watched = watched
        self._woken = woken
        self._plans: dict[tuple[str, str], Plan] = {}
        self._request = ""
        self._log = log.bind(cluster=around.settings.cluster)
        self._backoff = RequestBackoff(around.settings.backoff)

    async def run(self) -> NoReturn:
        """Audit until cancelled; no failure of the server or the bus ends it.

        Raises:
            ClusterReplaced, HistoryBroken: everything must start anew.
        """
        while True:
            self._woken.clear()
            try:
                plan = await self._next()
            except BusError as e:
                self._log.warning("audits_not_planned", error=str(e))
                await asyncio.sleep(self._backoff.delay(e).total_seconds())
                continue
            pause = plan.due - asyncio.get_running_loop().time() if plan else float("inf")
            if plan is None or pause > 0:
                await self._wait(pause)
            else:
                await self._attempt(plan)

    async def _wait(self, seconds: float) -> None:
        look = min(_LOOK, self._around.settings.audit_shortest or _LOOK)
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, look.total_seconds())):
                await self._woken.wait()

    async def _next(self) -> Plan | None:
        around = self._around
        self._request = await read_audit_request(around.kv, around.settings.cluster)
        watchers = [watched.watcher for watched in self._watched()]
        running = {(w.target.resource.key, w.scope): w for w in watchers}
        for key in self._plans.keys() - running.keys():
            del self._plans[key]
        for key, watcher in running.items():
            plan = self._plans.get(key)
            if plan is None or plan.watcher is not watcher:
                plan = Plan(around.kv, around.settings, watcher)
                await plan.look(self._request)
                self._plans[key] = plan
            plan.heed(self._request)
        return min(self._plans.values(), key=lambda plan: plan.due, default=None)

    # --- one audit ----------------------------------------------------------------------------

    async def _attempt(self, plan: Plan) -> None:
        resource = plan.watcher.target.resource
        counted = metrics.resource_metrics(self._around.settings.cluster, resource.key)
        try:
            epoch = await plan.claim(self._request)
            if not epoch:
                return
            objects = await self._audit(plan, epoch)
            counted.audits.inc()
            await plan.complete(objects, self._request)
        except (ClusterReplaced, HistoryBroken):
            raise
        except (KubeError, WatcherError, BusError) as e:
            counted.audits_abandoned.inc()
            pause = plan.fail(e)
            self._log.warning(
                "audit_abandoned",
                resource=str(resource),
                error=str(e),
                pause=pause.total_seconds(),
            )

    async def _audit(self, plan: Plan, epoch: int) -> int:
        """List and publish; answers how many objects there are."""
        around, target = self._around, plan.watcher.target
        paginator = Paginator(around.publisher.room)
        objects, rank = 0, None
        async with around.lists:  # W19: it counts as one of the lists that may run
            await around.check_identity()
            # Read before the list is asked for: it moves on while the answer is on its way.
            known = _mark_of(plan.watcher)
            pages = list_pages(
                around.client,
                target,
                limit=plan.sizes.limit,
                idle_timeout=around.settings.silence,
                accept=plan.accept,
            )
            async with aclosing(pages):
                async for page in pages:
                    await plan.renew()
                    rank = rank or _rank_of(page, epoch, known)
                    objects += len(page.items)
                    for part in paginator.add(map(read_identity, page.items)):
                        await self._publish(plan.watcher, rank, part)
            if rank is None:
                raise AuditAbandoned("the list has no page")
            await self._publish(plan.watcher, rank, paginator.end())
        return objects

    async def _publish(self, watcher: ResourceWatcher, rank: Rank, part: Part) -> None:
        resource = watcher.target.resource
        page = AuditPage(
            cluster=self._around.settings.cluster,
            incarnation=self._around.incarnation,
            group=resource.group,
            version=resource.version,
            resource=resource.plural,
            epoch=rank,
            scope=watcher.scope,
            page=part.number,
            last=part.is_last,
            after=part.after,
            items=part.items,
            observed_at=utc_now(),
        )
        await self._around.publisher.publish_marker(page)


def _mark_of(watcher: ResourceWatcher) -> str:
    checkpoint = watcher.checkpoint()
    if checkpoint is None:
        raise AuditAbandoned("the resource is being listed")
    return checkpoint.resource_version


def _rank_of(page: ListPage, epoch: int, known: str) -> Rank:
    version = page.resource_version
    check_list(known, version, AuditAbandoned)
    return Rank(version, epoch)
