"""Audits: lists of the identities of all objects, published in pages now and then (rule W18).

Even a watch without a fault misses what the API server fails to send. The projector compares the
pages with the snapshot; here nothing is compared and nothing is kept. An audit that fails has no
last page, and so nothing follows from it (rule W8).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from typing import Final, NoReturn

import structlog

from fleetbus.errors import BusError, KubeError
from fleetbus.kube.connection.backoff import ApiBackoff
from fleetbus.kube.list_watch.listing import ListPage, list_pages
from fleetbus.process.clock import utc_now
from fleetbus.watchers.resync import read_audit_request
from fleetbus_proto.events import AuditPage, Rank
from fleetbus_watcher import metrics
from fleetbus_watcher.audit.pages import Paginator, Part, read_identity
from fleetbus_watcher.audit.schedule import AuditSchedule
from fleetbus_watcher.errors import (
    AuditAbandoned,
    ClusterReplaced,
    HistoryBroken,
    WatcherError,
)
from fleetbus_watcher.etcd_restore import check_list_version
from fleetbus_watcher.follow.context import ClusterContext
from fleetbus_watcher.follow.resource_watcher import ResourceWatcher

log = structlog.get_logger()

_POLL: Final = timedelta(seconds=60)
"""Interval at which new resources, and requests whose wake-up was lost, are noticed."""


class Auditor:
    """Audits everything that is watched of one cluster, one resource after the other.

    Args:
        context: of the cluster.
        watchers: returns the watchers of the resources that are watched now.
        woken: set when an audit may have been requested.
    """

    def __init__(
        self,
        context: ClusterContext,
        watchers: Callable[[], Sequence[ResourceWatcher]],
        woken: asyncio.Event,
    ) -> None:
        self._context = context
        self._watchers = watchers
        self._woken = woken
        self._schedules: dict[tuple[str, str], AuditSchedule] = {}
        self._request = ""
        self._request_read_at = float("-inf")
        self._log = log.bind(cluster=context.settings.cluster)
        self._backoff = ApiBackoff(context.settings.backoff)

    async def run(self) -> NoReturn:
        """Audit until cancelled; no failure of the server or the bus ends it.

        Raises:
            ClusterReplaced, HistoryBroken: everything must start over.
        """
        while True:
            if self._woken.is_set():
                self._woken.clear()
                self._request_read_at = float("-inf")
            try:
                schedule = await self._next()
            except BusError as e:
                self._log.warning("audits_not_scheduled", error=str(e))
                await asyncio.sleep(self._backoff.delay(e).total_seconds())
                continue
            pause = schedule.due - asyncio.get_running_loop().time() if schedule else float("inf")
            if schedule is None or pause > 0:
                await self._wait(pause)
            else:
                await self._attempt(schedule)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, self._poll)):
                await self._woken.wait()

    @property
    def _poll(self) -> float:
        return min(_POLL, self._context.settings.audit_shortest or _POLL).total_seconds()

    async def _next(self) -> AuditSchedule | None:
        context = self._context
        now = asyncio.get_running_loop().time()
        if now - self._request_read_at >= self._poll:  # not for each audit: most clusters have many
            self._request = await read_audit_request(context.kv, context.settings.cluster)
            self._request_read_at = now
        running = {(w.target.resource.key, w.scope): w for w in self._watchers()}
        for key in self._schedules.keys() - running.keys():
            del self._schedules[key]
        for key, watcher in running.items():
            schedule = self._schedules.get(key)
            if schedule is None or schedule.watcher is not watcher:
                schedule = AuditSchedule(context.kv, context.settings, context.timing, watcher)
                await schedule.read(self._request)
                self._schedules[key] = schedule
            schedule.set_request(self._request)
        return min(self._schedules.values(), key=lambda schedule: schedule.due, default=None)

    # --- one audit ----------------------------------------------------------------------------

    async def _attempt(self, schedule: AuditSchedule) -> None:
        resource = schedule.watcher.target.resource
        counted = metrics.resource_metrics(self._context.settings.cluster, resource.key)
        try:
            audit_id = await schedule.claim(self._request)
            if not audit_id:
                return
            objects = await self._audit(schedule, audit_id)
            counted.audits.inc()
            await schedule.complete(objects, self._request)
        except (ClusterReplaced, HistoryBroken):
            raise
        except (KubeError, WatcherError, BusError) as e:
            counted.audits_abandoned.inc()
            pause = schedule.fail(e)
            self._log.warning(
                "audit_abandoned",
                resource=str(resource),
                error=str(e),
                pause=pause.total_seconds(),
            )

    async def _audit(self, schedule: AuditSchedule, audit_id: int) -> int:
        """List and publish; returns how many objects there are."""
        context, watcher = self._context, schedule.watcher
        paginator = Paginator(context.publisher.max_body)
        objects, rank = 0, None
        async with context.lists:  # W19: it counts as one of the lists that may run
            await context.identity.check()
            # Read before the list is requested: it moves on while the answer is on its way.
            mark = _mark_of(watcher)
            async with aclosing(self._list(schedule)) as pages:
                async for page in pages:
                    await schedule.renew()
                    rank = rank or _rank_of(page, audit_id, mark)
                    objects += len(page.items)
                    await self._publish(
                        watcher, rank, paginator.add(map(read_identity, page.items))
                    )
            if rank is None:
                raise AuditAbandoned("the list has no page")
            await self._publish(watcher, rank, [paginator.end()])
        return objects

    def _list(self, schedule: AuditSchedule) -> AsyncGenerator[ListPage]:
        context = self._context
        return list_pages(
            context.client,
            schedule.watcher.target,
            limit=schedule.sizes.limit,
            idle_timeout=context.settings.silence,
            accept=schedule.accept,
        )

    async def _publish(self, watcher: ResourceWatcher, rank: Rank, parts: Iterable[Part]) -> None:
        for part in parts:
            await self._context.publisher.publish_marker(self._page_of(watcher, rank, part))

    def _page_of(self, watcher: ResourceWatcher, rank: Rank, part: Part) -> AuditPage:
        resource = watcher.target.resource
        return AuditPage(
            cluster=self._context.settings.cluster,
            incarnation=self._context.incarnation,
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


def _mark_of(watcher: ResourceWatcher) -> str:
    checkpoint = watcher.checkpoint()
    if checkpoint is None:
        raise AuditAbandoned("the resource is being listed")
    return checkpoint.resource_version


def _rank_of(page: ListPage, audit_id: int, highest: str) -> Rank:
    version = page.resource_version
    check_list_version(highest, version, AuditAbandoned)
    return Rank(version, audit_id)
