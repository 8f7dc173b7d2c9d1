"""The resources of one cluster that are watched now, each by a task of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_proto.events import ResourceStatus, WatchSet
from fleetbus_proto.resources import Resource
from fleetbus_watcher import metrics
from fleetbus_watcher.follow.context import ClusterContext
from fleetbus_watcher.follow.progress import Progress
from fleetbus_watcher.follow.resource_watcher import ResourceWatcher
from fleetbus_watcher.publish.checkpoint import Checkpoint
from fleetbus_watcher.resources.removed_types import RemovedTypes
from fleetbus_watcher.selection import SelectedResource, SelectionResult

log = structlog.get_logger()


@dataclass(slots=True)
class _Watched:
    selected: SelectedResource
    watcher: ResourceWatcher
    progress: Progress
    task: asyncio.Task[None]


class WatchedResources:
    """Starts and stops the watchers of a cluster's resources.

    Attributes:
        watch_set: for heartbeats, as of the last selection.
    """

    def __init__(self, cluster: str, changed: asyncio.Event) -> None:
        self._cluster = cluster
        self._changed = changed
        self._log = log.bind(cluster=cluster)
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._refused: list[ResourceStatus] = []
        self.watch_set: WatchSet | None = None

    # --- queries ------------------------------------------------------------------------------

    def watchers(self) -> list[ResourceWatcher]:
        """Return the running watchers."""
        return [entry.watcher for entry in self._watched.values()]

    def statuses(self) -> list[ResourceStatus]:
        """Return the state of each resource, for heartbeats."""
        statuses = [progress.status() for progress in self._progresses()]
        return sorted([*statuses, *self._refused], key=lambda s: (s.group, s.resource, s.scope))

    def unsettled(self) -> str:
        """Name the first syncs that are neither complete nor failing; empty for none."""
        waiting = [progress.name for progress in self._progresses() if not progress.is_settled]
        return f"first sync of {', '.join(waiting[:5])}" if waiting else ""

    def no_access(self) -> tuple[str, str]:
        """Return reason and message if no resource can be read; empty if one can."""
        progresses = self._progresses()
        if progresses and all(progress.no_access for progress in progresses):
            return (progresses[0].no_access, progresses[0].status().message)
        return ("", "")

    @property
    def are_followed(self) -> bool:
        """Whether every resource is listed and its watch open."""
        progresses = self._progresses()
        return bool(progresses) and all(progress.is_followed for progress in progresses)

    @property
    def are_storing(self) -> bool:
        """Whether an event is published but not acknowledged yet."""
        return any(progress.lag > 0 for progress in self._progresses())

    def checkpoints(self) -> list[tuple[Resource, str, Checkpoint]]:
        """Return the checkpoints that may be written now: resource, scope and checkpoint."""
        pairs = ((each, each.checkpoint()) for each in self.watchers())
        return [(each.target.resource, each.scope, c) for each, c in pairs if c is not None]

    def _progresses(self) -> list[Progress]:
        return [entry.progress for entry in self._watched.values()]

    # --- changes ------------------------------------------------------------------------------

    def adjust(
        self,
        group: asyncio.TaskGroup,
        context: ClusterContext,
        selected: SelectionResult,
        removed: RemovedTypes,
    ) -> None:
        """Start and stop watchers so that those of the selection run.

        Args:
            group: owns their tasks.
            context: of the cluster.
            selected: what to watch.
            removed: knows which resources may still exist although discovery lacks them.
        """
        stopped: set[str] = set()
        for key, entry in list(self._watched.items()):
            new = selected.resources.get(key)
            if new is None and removed.holds(entry.selected.api.resource):
                continue
            if new is None or new.target != entry.selected.target:
                self._stop(key)
                stopped.add(key[0])
        for key, new in selected.resources.items():
            if key not in self._watched:
                self._watched[key] = self._start(group, context, new)
        for resource in stopped - {key for key, _ in self._watched}:
            metrics.forget_resource(self._cluster, resource)
        if (self._refused, self.watch_set) != (selected.refused, selected.watch_set):
            self._refused, self.watch_set = selected.refused, selected.watch_set
            self._changed.set()

    async def stop(self, resource_key: str) -> None:
        """Stop the watchers of a resource, and wait until none of them reads or reports it."""
        keys = [key for key in self._watched if key[0] == resource_key]
        for task in [self._stop(key) for key in keys]:
            await cancel_and_wait(task)
        if keys:
            metrics.forget_resource(self._cluster, resource_key)

    def clear(self) -> None:
        """Drop all entries; their tasks have ended."""
        self.forget_ages()
        self._watched.clear()

    def forget_ages(self) -> None:
        """Stop showing ages; the entries stay, because a stop records their checkpoints (W21)."""
        for (resource, _), entry in self._watched.items():
            metrics.forget_ages(self._cluster, resource, entry.progress)

    def _stop(self, key: tuple[str, str]) -> asyncio.Task[None]:
        entry = self._watched.pop(key)
        entry.task.cancel()
        metrics.forget_ages(self._cluster, key[0], entry.progress)
        self._changed.set()
        self._log.info("resource_unwatched", resource=str(entry.selected.api.resource))
        return entry.task

    def _start(
        self, group: asyncio.TaskGroup, context: ClusterContext, selected: SelectedResource
    ) -> _Watched:
        api = selected.api
        progress = Progress(api, selected.scope, selected.target.namespace, self._changed)
        metrics.show_ages(self._cluster, api.resource.key, progress)
        watcher = ResourceWatcher(selected, progress, context)
        task = group.create_task(watcher.run(), name=f"watch-{api.resource}")
        self._changed.set()
        return _Watched(selected, watcher, progress, task)
