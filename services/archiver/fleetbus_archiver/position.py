"""Position up to which the stream is archived: read from the names of the chunks alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleetbus.archive.names import ROOT, ChunkName, age_of, read_name, stream_id
from fleetbus.archive.store import ArchiveStore


@dataclass(slots=True)
class Position:
    """Position up to which one stream is archived.

    Attributes:
        created: when the stream was created, as NATS says it.
        generation: counts how often the stream has lost its end.
        archived: the last sequence that stored chunks cover; 0 for none.
        end: until when they cover it; None for none.
        latest: the latest time that any of its chunks covers; None for none.
        known: up to here nothing is to be archived; at least `archived`.
        is_first: whether the archive has no chunk of any other stream.
    """

    created: str
    generation: int = 1
    archived: int = 0
    end: datetime | None = None
    latest: datetime | None = None
    delivered: int = 0
    is_first: bool = True

    @property
    def stream(self) -> str:
        """The identity of the stream."""
        return stream_id(self.created, self.generation)

    def skip(self, sequence: int) -> int:
        """Go on behind a sequence, without the messages up to it; returns how many these are.

        Nothing is missing if the archive begins here.
        """
        missing = 0 if self.is_first and self.latest is None else sequence - self.archived
        self.archived = self.delivered = sequence
        self.end = None
        return missing

    def advance(self, name: ChunkName) -> None:
        """Note a stored chunk."""
        self.archived, self.end = name.last, name.end
        self.latest = max(self.latest or name.end, name.end)
        self.delivered = max(self.delivered, name.last)


async def read_position(store: ArchiveStore, created: str) -> Position:
    """Find out how far a stream is archived.

    Raises:
        ArchiveError: the archive cannot be listed, or has chunks of a newer release.
    """
    streams = await store.folders(ROOT)
    await store.check_format()
    plain = stream_id(created)
    folders = [name for name in streams if age_of(name)[0] == plain]
    position = Position(created, is_first=not set(streams) - set(folders))
    if not folders:
        return position
    position.generation = max(age_of(name)[1] for name in folders)
    stored = await store.list(f"{ROOT}/{position.stream}")
    names = [name for path, _ in stored if (name := read_name(path)) is not None]
    if names:
        position.latest = max(name.end for name in names)
        position.advance(max(names, key=lambda name: (name.last, name.end)))
    return position
