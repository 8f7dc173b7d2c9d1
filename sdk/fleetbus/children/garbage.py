"""Finds children whose parent is gone, even if the event of its deletion was lost.

The sweep deletes nothing: it enqueues the parent's request, whose reconcile reads parent and child
live. So a sweep never races with a running reconcile, and several processes may sweep at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Final

import structlog
from redis.exceptions import RedisError

from fleetbus.children.marks import CONTROLLER_LABEL
from fleetbus.children.policy import Policy
from fleetbus.errors import FleetbusError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.owners import read_owner
from fleetbus.kube.selectors import LabelSelector
from fleetbus.ownership import Owner
from fleetbus.reconcile import Request
from fleetbus.snapshot.reads.entries import Entry
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority, Queue

log = structlog.get_logger()

_PAGE: Final = 500


class OrphanSweep:
    """The orphan sweep of one `Children` controller.

    Args:
        policy: the settings of the controller.
        period: the interval between sweeps of this process, with jitter.
    """

    def __init__(self, policy: Policy, period: timedelta) -> None:
        self._policy = policy
        self._period = period.total_seconds()

    async def run(self, queue: Queue, fleet: Fleet) -> None:
        """Sweep periodically; the full enqueue at the start replaces the first sweep."""
        while True:
            await asyncio.sleep(self._period * random.uniform(0.8, 1.2))  # noqa: S311 -- jitter
            try:
                found = await self.sweep(queue, fleet)
            except (FleetbusError, RedisError, WorkqueueError) as e:
                # Redis is away or was emptied: the next sweep catches up.
                log.warning("sweep_failed", controller=self._policy.controller, error=str(e))
                continue
            except Exception:
                # A cluster filter of the author raised: its reconciles fail with the same error.
                log.exception("sweep_failed", controller=self._policy.controller)
                continue
            if found:
                log.info("orphans_found", controller=self._policy.controller, parents=found)

    async def sweep(self, queue: Queue, fleet: Fleet) -> int:
        """Enqueue the parents that have children but are not in the snapshot; return how many.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
            FleetbusError: the snapshot was emptied.
            WorkqueueError: the queue cannot be reached.
        """
        found: set[Request] = set()
        async for entry in self._children(fleet):
            owner = read_owner(entry.body, entry, self._policy.controller)
            if owner is not None and await self._is_gone(owner, fleet):
                request = Request(
                    self._policy.controller, owner.cluster_name, owner.namespace, owner.name
                )
                if request not in found:
                    found.add(request)
                    await queue.add([Add(request, Priority.INITIAL)])
        return len(found)

    async def _children(self, fleet: Fleet) -> AsyncIterator[Entry]:
        labels = LabelSelector.parse(f"{CONTROLLER_LABEL}={self._policy.controller}")
        for resource in self._policy.children:
            query = ListQuery(
                clusters=self._policy.child_clusters(fleet),
                resource=resource.key,
                labels=labels,
                limit=_PAGE,
                count=False,
            )
            async for page in fleet.reader.pages(query):
                for entry in page.entries:
                    yield entry

    async def _is_gone(self, owner: Owner, fleet: Fleet) -> bool:
        """Check the snapshot, which only decides whether to enqueue the parent."""
        if not fleet.has(owner.cluster_name):
            return False  # a reconcile could not read it
        parents = self._policy.parents.key
        parent = await fleet.reader.get(owner.cluster_name, parents, owner.namespace, owner.name)
        return parent is None or parent.uid != owner.uid
