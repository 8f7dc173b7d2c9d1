"""Finds the period that the events cover, and its gaps (rule A9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fleetbus.bus.connection import Bus, NoStream
from fleetbus.bus.jetstream import stream_info
from fleetbus.process.clock import rfc3339
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.subjects import STREAM
from fleetbus_query_api.errors import OutsideWindow

_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Gap:
    """A time about which less is known than otherwise.

    Attributes:
        cluster: the only one that it is about; empty for all.
        until: its end.
        reason: for people.
        since: when it began; None if that is unknown.
    """

    cluster: str
    until: datetime
    reason: str
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the events cover.

    Attributes:
        start: of the first event that is left, or when the stream was created.
        end: when this was looked up.
        created: when the stream was created; what was before is lost.
        last_sequence: of the stream at the end.
    """

    start: datetime
    end: datetime
    created: datetime
    last_sequence: int

    def require(self, at: datetime) -> None:
        """Check that a point in time is inside.

        Raises:
            OutsideWindow: it is not; the message says why.
        """
        if at >= self.start:
            return
        begins = f"{rfc3339(at, timespec='seconds')} is before the first event that is left"
        begins += f", of {rfc3339(self.start, timespec='seconds')}"
        if at < self.created:
            created = rfc3339(self.created, timespec="seconds")
            raise OutsideWindow(f"{begins}: the stream was created at {created}, empty")
        raise OutsideWindow(f"{begins}: older ones were dropped by the limits of the stream")


async def read_window(bus: Bus) -> Window:
    """Look up the window.

    Raises:
        NoStream: there is no stream.
        NoAnswer: NATS does not answer.
        BusError: the server refused.
    """
    info = await stream_info(bus)
    if info is None:
        raise NoStream(f"there is no stream {STREAM}: its events are lost")
    end = datetime.now(UTC)
    created = _time_of(info["created"])
    state = info["state"]
    # A stream that has lost nothing yet goes back to its creation.
    first = _time_of(state["first_ts"]) if state["first_seq"] > 1 else created
    return Window(min(max(first, created), end), end, created, state["last_seq"])


async def find_gaps(
    reader: SnapshotReader, clusters: Mapping[str, str], since: datetime
) -> list[Gap]:
    """Find the gaps after a point in time, of one resource in each cluster.

    A list replaces the watch when that was lost for too long, or when a watcher is new: changes
    that follow each other before it may appear as one, and deletions that it found carry its time.

    Args:
        reader: the snapshot; it knows the last list of each resource.
        clusters: the resource key by cluster.
        since: the beginning of what is asked for.
    """
    gaps: list[Gap] = []
    scopes = [(cluster, resource, "") for cluster, resource in clusters.items()]
    for (cluster, _, _), last in (await reader.past.completed_ranks(scopes)).items():
        if last.rank is None:
            continue
        listed_at = datetime.fromtimestamp(last.rank.id / _MS, UTC)  # about when it began
        if listed_at > since:
            reason = "listed anew: changes shortly before may appear as one, or carry its time"
            gaps.append(Gap(cluster, listed_at, reason))
    return sorted(gaps, key=lambda gap: (gap.until, gap.cluster))


def _time_of(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)
