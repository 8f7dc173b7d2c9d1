"""Finds children whose parent is gone, whatever was lost meanwhile.

Here nothing is deleted: the parent's request is enqueued, and its reconcile reads parent and child
live. So a sweep never meets a running reconcile, and several processes may sweep at once.
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
from fleetbus.snapshot.reads.reader import Entry, ListQuery
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus.workqueue.queue import Add, Priority, Queue

log = structlog.get_logger()

_PAGE: Final = 500


class OrphanSweep:
    """The orphan sweep of one `Children` controller.

    Args:
        policy: whose children.
        period: between two sweeps of this process, about.
    """

    def __init__(self, policy: Policy, period: timedelta) -> None:
        self._policy = policy
        self._period = period.total_seconds()

    async def run(self, queue: Queue, fleet: Fleet) -> None:
        """Sweep for ever; the full enqueue at the start is the first sweep."""
        while True:
            await asyncio.sleep(self._period * random.uniform(0.8, 1.2))  # noqa: S311 -- jitter
            try:
                found = await self.sweep(queue, fleet)
            except (FleetbusError, RedisError, WorkqueueError) as e:
                # The store is away or was emptied: the next sweep finds what this one did not.
                log.warning("sweep_failed", controller=self._policy.controller, error=str(e))
                continue
            except Exception:
                # The author's function for the clusters of children: reconciles fail by it, too.
                log.exception("sweep_failed", controller=self._policy.controller)
                continue
            if found:
                log.info("orphans_found", controller=self._policy.controller, parents=found)

    async def sweep(self, queue: Queue, fleet: Fleet) -> int:
        """Enqueue the parents that the snapshot lacks and that have children; answers how many.

        Raises:
            redis.exceptions.RedisError: the store is away.
            FleetbusError: the store was emptied.
            WorkqueueError: the queue is away.
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
            token = ""
            while True:
                page = await fleet.reader.list(
                    ListQuery(
                        clusters=self._policy.child_clusters(fleet),
                        resource=resource.key,
                        labels=labels,
                        limit=_PAGE,
                        continue_token=token,
                        count=False,
                    )
                )
                for entry in page.entries:
                    yield entry
                token = page.continue_token
                if not token:
                    break

    async def _is_gone(self, owner: Owner, fleet: Fleet) -> bool:
        """As far as the snapshot knows, which only decides whether somebody looks."""
        if not fleet.has(owner.cluster_name):
            return False  # nobody can look
        parents = self._policy.parents.key
        parent = await fleet.reader.get(owner.cluster_name, parents, owner.namespace, owner.name)
        return parent is None or parent.uid != owner.uid
