"""Makes sure that events are in the snapshot before requests are enqueued for them (rule P9).

The projector applies every event once. If every controller applied it again, the store would work
for each of them; so a controller only asks whether the snapshot has it, and applies what the
projector does not apply in time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from fleetbus.snapshot.outcomes import STANDING
from fleetbus_proto.versions import is_comparable, version_key

if TYPE_CHECKING:
    from fleetbus.snapshot.reads.reader import SnapshotReader
    from fleetbus.snapshot.write import SnapshotWriter
    from fleetbus_proto.events import Event

PAUSES: Final = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds before each look. The projector receives an event when the controller does, and takes
about a millisecond."""
_MISSES: Final = 3
"""Batches in a row that the projector did not apply in time: it is away, or far behind."""
_WITHOUT: Final = timedelta(seconds=2)


class AppliedEvents:
    """Waits for the projector, and applies events itself if that takes too long.

    Args:
        writer: of the snapshot.
        reader: of the same.
        without: for how long nobody waits for a projector that is away.
    """

    def __init__(
        self, *, writer: SnapshotWriter, reader: SnapshotReader, without: timedelta = _WITHOUT
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._without = without
        self._misses = 0
        self._alone_until = 0.0

    async def ensure(self, events: Sequence[Event]) -> list[Event]:
        """Return once the snapshot has these events, or newer states of their objects.

        Returns:
            The events that are what the snapshot had then: it had nothing newer of their objects.

        Raises:
            StoreEmpty: as `SnapshotWriter.apply`.
            StoreFull: as `SnapshotWriter.apply`.
            redis.exceptions.RedisError: as `SnapshotWriter.apply`.
        """
        missing, standing = events, cast("list[Event]", [])
        if time.monotonic() >= self._alone_until:
            for pause in PAUSES:
                if pause:
                    await asyncio.sleep(pause)
                missing = await self._missing(missing, standing)
                if not missing:
                    self._misses = 0
                    return standing
            self._misses += 1
            if self._misses >= _MISSES:
                self._alone_until = time.monotonic() + self._without.total_seconds()
        outcomes = (await self._writer.apply(missing)).outcomes
        applied = zip(missing, outcomes, strict=True)
        return standing + [event for event, outcome in applied if outcome in STANDING]

    async def _missing(self, events: Sequence[Event], standing: list[Event]) -> list[Event]:
        """Find the events that the snapshot lacks; adds to `standing` what it has as it is."""
        places: dict[tuple[str, str], list[Event]] = {}
        for event in events:
            places.setdefault((event.cluster, event.resource_key), []).append(event)
        reads = [
            self._reader.versions(*place, [(member.namespace, member.name) for member in members])
            for place, members in places.items()
        ]
        # Most batches are about one place, and a task costs more than the read.
        versions = [await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads)
        by_place = dict(zip(places, versions, strict=True))
        missing: list[Event] = []
        for event in events:
            entry = by_place[event.cluster, event.resource_key].get((event.namespace, event.name))
            if entry is None or not is_comparable(event.resource_version):
                missing.append(event)
                continue
            version = (event.incarnation.number, version_key(event.resource_version))
            has = (entry.incarnation, version_key(entry.resource_version))
            if has < version:
                missing.append(event)
            elif has == version:
                standing.append(event)
        return missing
