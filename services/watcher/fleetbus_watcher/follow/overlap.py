"""The overlapping watches of one resource (rule W24).

Besides the newest one there may be older ones that a newer list has not replaced yet: one that goes
on until it has passed the version of that list, and those that wait for acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from fleetbus.errors import KubeError
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.follow.context import ResourceContext
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.watch_reader import WatchReader


class OverlappingWatches:
    """The watches of one resource, each read by a task of its own.

    Args:
        resource: what is watched.
        lost: called with the mark of a watch that cannot go on without a new list.

    Attributes:
        highest: the highest version that one of them had read when a list began (W12).
    """

    def __init__(self, resource: ResourceContext, lost: Callable[[str], None]) -> None:
        self._resource = resource
        self._lost = lost
        # Oldest first.
        self._tasks: dict[WatchReader, asyncio.Task[None]] = {}
        self.highest = ""

    @property
    def mark(self) -> str:
        """Up to where everything they read is stored; empty without a watch."""
        oldest = self._oldest
        return oldest.epoch.mark.resource_version if oldest is not None else ""

    @property
    def _oldest(self) -> WatchReader | None:
        return next(iter(self._tasks), None)

    def open(self, epoch: EpochState, *, is_fresh: bool = False) -> WatchReader:
        """Read a watch from the mark of an epoch; older ones end when they have passed it.

        Args:
            epoch: whose rank the events carry.
            is_fresh: whether a list has just returned the version.
        """
        for older in self._tasks:
            older.end_at(epoch.mark.resource_version)
        reader = WatchReader(epoch, self._resource, is_fresh=is_fresh)
        name = f"read-{self._resource.target.resource}"
        self._tasks[reader] = asyncio.create_task(reader.run(), name=name)
        self._show_mark()
        return reader

    async def wait(self, reader: WatchReader) -> None:
        """Wait until a watch ends; it goes on when the caller is cancelled.

        Raises:
            Gone, NotFound: the watch cannot go on; only a list helps.
            PublishGivenUp, ClusterReplaced, HistoryBroken: see `WatchReader.run`.
        """
        await asyncio.shield(self._tasks[reader])

    async def keep(self) -> None:
        """Keep the oldest watch during a list: it contains everything that newer ones would.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: the error that ended one of them.
        """
        last: WatchReader | None = None
        redundant: list[WatchReader] = []
        for reader, task in list(self._tasks.items()):
            self._note_version(reader)
            if task.done():
                await self._finish(reader)
            elif last is not None and not last.has_passed:
                redundant.append(reader)
            else:
                last = reader
                reader.keep()
        await self._drop(redundant)

    async def finish(self) -> None:
        """Wait until the present ones have passed the version of the next list, or ended.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: the error that ended one of them.
        """
        readers = enumerate(self._tasks)
        await run_group(**{f"watch-{number}": self._finish(reader) for number, reader in readers})

    async def _finish(self, reader: WatchReader) -> None:
        try:
            await self.wait(reader)
        except KubeError as e:
            # Its version expired or the type is gone (410, 404): only a new list helps (W1).
            self._resource.log.warning("watch_expired", error=str(e))
            self._lost(reader.epoch.mark.resource_version)
        del self._tasks[reader]
        self._show_mark()

    async def close(self) -> None:
        """End all; their marks stay readable until there is a newer watch (W21)."""
        await _end(list(self._tasks.values()))

    async def forget(self) -> None:
        """End all and drop them: the next watch begins at a checkpoint."""
        for reader in self._tasks:
            self._note_version(reader)
        await self._drop(list(self._tasks))

    async def _drop(self, readers: Iterable[WatchReader]) -> None:
        tasks = [self._tasks.pop(reader) for reader in readers]
        self._show_mark()
        await _end(tasks)

    def _note_version(self, reader: WatchReader) -> None:
        if is_newer(reader.epoch.mark.resource_version, self.highest):
            self.highest = reader.epoch.mark.resource_version

    def _show_mark(self) -> None:
        oldest = self._oldest
        if oldest is not None:
            self._resource.progress.watching(oldest.epoch.mark)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        await cancel_and_wait(task)
