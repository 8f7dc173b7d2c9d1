"""The request of a client that watches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from fleetbus_query_api.catalog.readable import Readable
from fleetbus_query_api.watch.selection import Selector
from fleetbus_query_api.watch.subscription import Encoder


class Periodic(Protocol):
    """Adds to a stream what is no change of an object."""

    interval: timedelta

    async def render(self, readable: Readable) -> bytes:
        """Render the bytes to be sent now; may be empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """A request to watch objects.

    Attributes:
        find: resolves the resource, and the clusters in which the user may watch it; called again
            and again while the watch is open.
        user: by whose name watches are counted.
        encoder: of the client.
        selector: which objects.
        since: the version that the client knows; None or 0 for none.
        sends_initial: whether the present state comes first, and its end is marked; None to send it
            where there is no version, without a mark.
        has_bookmarks: whether the client wants positions reported.
        bookmarks_at_once: whether the first one is sent at the beginning.
        timeout: after which the watch ends.
        periodic: adds to the stream.
    """

    find: Callable[[], Awaitable[Readable]]
    user: str
    encoder: Encoder
    selector: Selector
    since: int | None = None
    sends_initial: bool | None = None
    has_bookmarks: bool = False
    bookmarks_at_once: bool = False
    timeout: timedelta | None = None
    periodic: Periodic | None = None

    @property
    def begins_with_state(self) -> bool:
        """Whether the present state comes first."""
        return not self.since if self.sends_initial is None else self.sends_initial
