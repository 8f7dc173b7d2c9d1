"""A query API with one rule taken away, to see that the campaign notices (V6).

    python tests/run.py faults.queries.mutants NAME

Product code has no switches: what is taken away is patched here, in the process of the query API.
"""

# The patches name private parts, so that pyright fails when a patch no longer fits the code.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import fleetbus_query_api.watch.stream as streaming
import fleetbus_query_api.watch.subscription as subscribing
from faults.queries.campaign import QueryPlan
from fleetbus.snapshot.reads.feed import Feed, Position
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.main import main
from fleetbus_query_api.watch.events import DELETED, Event, Shown
from fleetbus_query_api.watch.requests import WatchRequest
from fleetbus_query_api.watch.stream import OpenWatch
from support.processes.patch import replace

_PROMISED: Final = 50
"""Versions that a bookmark promises too many: the writes of half a second."""


def no_gone_after_loss() -> None:
    """A5, P13: who watches while the store is lost goes on from what the new one has."""

    def keep(self: FeedTail, reason: str) -> None:
        del reason
        self._position = None

    def resume(version: int, end: Position) -> Position:
        return Position(end.generation, min(version, end.version))

    read = Feed.read

    async def anyhow(self: Feed, position: Position, **more: Any) -> Any:
        end = await self.end()
        since = min(position.version, end.version)
        return await read(self, Position(end.generation, since), **more)

    replace(FeedTail, "_lose", keep)
    replace(streaming, "resume", resume)
    replace(Feed, "read", anyhow)


def resumes_at_present() -> None:
    """A5: a watch from a version begins with what changes from now on."""
    init = OpenWatch.__init__

    def at_present(
        self: OpenWatch,
        broadcaster: Any,
        watch_request: WatchRequest,
        readable: Any,
        end: Position,
        release: Callable[[], None],
    ) -> None:
        init(self, broadcaster, watch_request, readable, end, release)
        self._missed_from = None
        self._subscription.flush(since=end.version)

    replace(OpenWatch, "__init__", at_present)


def deletions_dropped() -> None:
    """A6: nobody learns that an object is gone."""
    transitions = subscribing.transitions

    def without(shown: Shown, event: Event, *, is_match: bool) -> Iterator[tuple[str, Event]]:
        for kind, each in transitions(shown, event, is_match=is_match):
            if kind != DELETED:
                yield kind, each

    replace(subscribing, "transitions", without)


def leaving_not_reported() -> None:
    """A5: an object that no longer matches a selector stays with those who have it."""
    transitions = subscribing.transitions

    def without(shown: Shown, event: Event, *, is_match: bool) -> Iterator[tuple[str, Event]]:
        for kind, each in transitions(shown, event, is_match=is_match):
            if kind != DELETED or not event.is_live:
                yield kind, each

    replace(subscribing, "transitions", without)


def bookmark_promises_more() -> None:
    """A6: a bookmark has a version up to which not everything was sent."""
    bookmark = OpenWatch._bookmark

    def more(self: OpenWatch) -> bytes:
        before = self._subscription.since
        self._subscription.since = self._broadcaster.delivered + _PROMISED
        try:
            return bookmark(self)
        finally:
            self._subscription.since = before

    replace(OpenWatch, "_bookmark", more)


@dataclass(frozen=True)
class QueryMutation:
    """A rule that is taken away, and the plan that shows it."""

    apply: Callable[[], None]
    plan: QueryPlan


_OWN: Final = frozenset({"kube", "events"})
"""Clients that need no program of others: they show each of these within seconds."""


def _plan(*faults: str) -> QueryPlan:
    return QueryPlan(0, decks=1, calm=3.0, faults=faults, kinds=_OWN)


QUERY_MUTATIONS: Final[dict[str, QueryMutation]] = {
    "no-gone-after-loss": QueryMutation(no_gone_after_loss, _plan("valkey-lost", "valkey-flushed")),
    "resumes-at-present": QueryMutation(resumes_at_present, _plan("api-killed")),
    "deletions-dropped": QueryMutation(deletions_dropped, _plan("api-killed")),
    "leaving-not-reported": QueryMutation(leaving_not_reported, _plan("api-killed")),
    "bookmark-promises-more": QueryMutation(bookmark_promises_more, _plan("api-terminated")),
}

if __name__ == "__main__":
    QUERY_MUTATIONS[sys.argv[1]].apply()
    sys.exit(main([]))
