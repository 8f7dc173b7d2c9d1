"""The overlapping watches of one resource (rule W24).

Besides the newest one there may be older ones that a newer list has not replaced yet: one that goes
on until it has passed the version of that list, and those that wait for acknowledgements.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetbus.errors import KubeError
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import run_group
from fleetbus_watcher.follow.context import ResourceContext
from fleetbus_watcher.follow.epoch import EpochState
from fleetbus_watcher.follow.watch_reader import WatchReader, close


class OverlappingWatches:
    """The readers of one resource, oldest first.

    Args:
        resource: what is watched.
        lost: called with the mark of a watch that cannot go on without a new list.

    Attributes:
        known: the highest version that one of them had read when a list began (W12).
    """

    def __init__(self, resource: ResourceContext, lost: Callable[[str], None]) -> None:
        self._resource = resource
        self._lost = lost
        self._readers: list[WatchReader] = []
        self.known = ""

    @property
    def mark(self) -> str:
        """Up to where everything they read is stored; empty without a watch."""
        return self._readers[0].epoch.mark.resource_version if self._readers else ""

    def open(self, epoch: EpochState, *, is_fresh: bool = False) -> WatchReader:
        """Read a watch from the mark of an epoch; older ones end when they have passed it.

        Args:
            epoch: whose rank the events carry.
            is_fresh: whether a list has just returned the version.
        """
        for older in self._readers:
            older.end_at(epoch.mark.resource_version)
        reader = WatchReader(epoch, self._resource, is_fresh=is_fresh)
        self._readers.append(reader)
        self._show_mark()
        return reader

    async def keep(self) -> None:
        """Keep the oldest watch during a list: it contains everything that newer ones would.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: the error that ended one of them.
        """
        kept: list[WatchReader] = []
        redundant: list[WatchReader] = []
        for reader in list(self._readers):
            self._note_version(reader)
            if not reader.is_running:
                await self._finish(reader)
            elif kept and not kept[-1].has_passed:
                redundant.append(reader)
            else:
                kept.append(reader)
                reader.keep()
        self._readers = kept
        self._show_mark()
        await close(redundant)

    async def finish(self) -> None:
        """Wait until the present ones have passed the version of the next list, or ended.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: the error that ended one of them.
        """
        readers = enumerate(self._readers)
        await run_group(**{f"watch-{number}": self._finish(reader) for number, reader in readers})

    async def _finish(self, reader: WatchReader) -> None:
        try:
            await reader.wait()
        except KubeError as e:
            # Its version expired or the type is gone (410, 404): only a new list helps (W1).
            self._resource.log.warning("watch_expired", error=str(e))
            self._lost(reader.epoch.mark.resource_version)
        self._readers.remove(reader)
        self._show_mark()

    async def close(self) -> None:
        """End all; their marks stay readable until there is a newer watch (W21)."""
        await close(self._readers)

    async def forget(self) -> None:
        """End all and drop them: the next watch begins at a checkpoint."""
        readers, self._readers = self._readers, []
        for reader in readers:
            self._note_version(reader)
        await close(readers)

    def _note_version(self, reader: WatchReader) -> None:
        if is_newer(reader.epoch.mark.resource_version, self.known):
            self.known = reader.epoch.mark.resource_version

    def _show_mark(self) -> None:
        if self._readers:
            self._resource.progress.watching(self._readers[0].epoch.mark)
