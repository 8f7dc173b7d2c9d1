"""The watches of one resource that are read at the same time (rule W24).

There is one, and beside it those that a newer list has not replaced yet: one that goes on until it
has passed the version of that list, and those of which something is still to be stored.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetbus.errors import KubeError
from fleetbus_proto.versions import is_newer
from fleetbus_watcher.errgroup import race
from fleetbus_watcher.follow.epoch import Stream
from fleetbus_watcher.follow.watch_reader import WatchedResource, WatchReader, close


class Watches:
    """The readers of one resource, oldest first.

    Args:
        resource: what they read.
        lost: called with the mark of a watch that only a list can replace.

    Attributes:
        known: the highest version that one of them had read when a list was begun (W12).
    """

    def __init__(self, resource: WatchedResource, lost: Callable[[str], None]) -> None:
        self._resource = resource
        self._lost = lost
        self._readers: list[WatchReader] = []
        self.known = ""

    @property
    def mark(self) -> str:
        """Up to where all that they read is stored; empty without a watch."""
        return self._readers[0].stream.mark.resource_version if self._readers else ""

    def open(self, stream: Stream, *, is_fresh: bool = False) -> WatchReader:
        """Read a watch from the mark of a stream on; older ones end when they have passed it.

        Args:
            stream: what its events descend from.
            is_fresh: whether a list has just told the version.
        """
        for older in self._readers:
            older.end_at(stream.mark.resource_version)
        reader = WatchReader(stream, self._resource, is_fresh=is_fresh)
        self._readers.append(reader)
        self._show_mark()
        return reader

    async def keep(self) -> None:
        """Before a list: keep the oldest watch, for it tells all that newer ones would tell.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: what has ended one of them.
        """
        kept: list[WatchReader] = []
        needless: list[WatchReader] = []
        for reader in list(self._readers):
            self._note_version(reader)
            if not reader.is_running:
                await self._see_off(reader)
            elif kept and not kept[-1].has_passed:
                needless.append(reader)
            else:
                kept.append(reader)
                reader.keep()
        self._readers = kept
        self._show_mark()
        await close(needless)

    async def see_off(self) -> None:
        """Wait until the present ones have passed the version of the next list, or are lost.

        Raises:
            PublishGivenUp, ClusterReplaced, HistoryBroken: what has ended one of them.
        """
        readers = enumerate(self._readers)
        await race(**{f"watch-{number}": self._see_off(reader) for number, reader in readers})

    async def _see_off(self, reader: WatchReader) -> None:
        try:
            await reader.wait()
        except KubeError as e:
            # It lost its thread (410, 404): only a newer start helps (W1).
            self._resource.log.warning("watch_lost", error=str(e))
            self._lost(reader.stream.mark.resource_version)
        self._readers.remove(reader)
        self._show_mark()

    async def close(self) -> None:
        """End all; their marks stay known until there is a newer watch (W21)."""
        await close(self._readers)

    async def forget(self) -> None:
        """End all: the next watch begins at a checkpoint."""
        readers, self._readers = self._readers, []
        for reader in readers:
            self._note_version(reader)
        await close(readers)

    def _note_version(self, reader: WatchReader) -> None:
        if is_newer(reader.stream.mark.resource_version, self.known):
            self.known = reader.stream.mark.resource_version

    def _show_mark(self) -> None:
        if self._readers:
            self._resource.progress.watching(self._readers[0].stream.mark)
