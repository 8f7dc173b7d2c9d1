"""One watch: what it still has to send, in order, within a bound (rules A6, A8)."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from fleetbus.snapshot import Entry
from fleetbus_query_api.responses.problem import GoneProblem, Problem
from fleetbus_query_api.watch.events import Event, Key, Shown, transitions
from fleetbus_query_api.watch.selection import Matching, Selector

MAX_WAITING: Final = 4 * 1024 * 1024
"""Bytes that wait for a client; it lists again instead of getting more."""


class Encoder(Protocol):
    """Encodes the events of a watch for its client."""

    @property
    def key(self) -> Hashable:
        """Equal for encoders that encode alike: an event is encoded once for all their watches."""
        ...

    def event(self, event_type: str, entry: Entry) -> bytes:
        """Encode `ADDED`, `MODIFIED` or `DELETED`, with its object or last state.

        The entry's counter is the resourceVersion of the event.
        """
        ...

    def listed(self, entry: Entry) -> bytes:
        """Encode an object of a present state, whose other objects may not have been sent yet."""
        ...

    def bookmark(self, version: int, *, ends_initial: bool) -> bytes:
        """Encode a position: everything up to this version was sent."""
        ...

    def error(self, problem: Problem) -> bytes:
        """Encode why the watch ends."""
        ...


class EndReason(StrEnum):
    """Why a watch ended; a label of metrics."""

    CLIENT = "client"
    TIMEOUT = "timeout"
    STOPPING = "stopping"
    EXPIRED = "expired"
    SLOW = "slow"
    RIGHTS = "rights"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Held:
    """An event that has to wait, as it was delivered."""

    event: Event
    visibility: Shown
    is_match: bool


class Subscription:
    """Takes the events of its resource, and keeps them until its client has room for them.

    Args:
        encoder: of its client.
        selector: which objects it shows.
        user: by whose name it is counted.
        clusters: in which.
        since: the version up to which its client knows everything.
        opened: the version at which it was opened: the client may have read any object by then.
    """

    def __init__(
        self,
        *,
        encoder: Encoder,
        selector: Selector,
        user: str,
        clusters: Iterable[str],
        since: int,
        opened: int,
    ) -> None:
        self.encoder = encoder
        self.selector = selector
        self.user = user
        self.clusters = set(clusters)
        self.ready = asyncio.Event()
        self.end_reason: EndReason | None = None
        self.matching: Matching | None = None
        """The keys that those with its selector have shown, if it has one."""
        self.since = since
        """The version up to which the client knows everything."""
        self._opened = opened
        self._lines: list[bytes] = []
        self._waiting = 0
        # While what came before is sent: events that wait for it.
        self._held: list[_Held] | None = None
        # Of objects whose events follow: how the client knows them.
        self._shown: dict[Key, Shown] = {}

    @property
    def waiting(self) -> int:
        """The bytes that wait."""
        return self._waiting

    def sees(self, cluster: str, namespace: str, name: str) -> bool:
        """Whether an object of this name may be shown."""
        return cluster in self.clusters and self.selector.has(namespace, name)

    # --- events ---------------------------------------------------------------------------------

    def offer(self, event: Event, visibility: Shown, is_match: bool) -> None:
        """Take the next event; `visibility` is about those who got all events before."""
        if self.end_reason is not None or event.version <= self.since:
            return
        if self._held is None:
            self._show(event, visibility, is_match=is_match)
            return
        self._held.append(_Held(event, visibility, is_match))
        self._count(len(event.entry.body))

    def hold(self) -> None:
        """Keep events back until `flush`: something that comes before them is sent first."""
        self._held = []

    def flush(self, *, visibility: dict[Key, Shown] | None = None, since: int = 0) -> None:
        """Show the events that were kept back.

        Args:
            visibility: whether it knows objects that changed before and whose events follow.
            since: the version up to which everything was shown.
        """
        offers, self._held = self._held or [], None
        self._waiting = 0
        self._shown |= visibility or {}
        self.since = max(self.since, since)
        for offer in offers:
            self.offer(offer.event, offer.visibility, offer.is_match)

    def skip_listed(self, clusters: Iterable[str], version: int, late: dict[Key, int]) -> None:
        """Drop events that were kept back and that a list of clusters shows already.

        Args:
            clusters: those that were listed.
            version: of the list.
            late: the versions of the objects that it shows in a later state.
        """
        listed = set(clusters)

        def is_shown(event: Event) -> bool:
            if event.key[0] not in listed:
                return False
            return event.version <= version or event.version < late.get(event.key, 0)

        self._held = [offer for offer in self._held or [] if not is_shown(offer.event)]

    def render(self, event: Event, visibility: Shown, *, is_match: bool) -> bytes:
        """The lines of an event, to be sent at once."""
        return b"".join(
            self._line(event_type, each)
            for event_type, each in transitions(visibility, event, is_match=is_match)
        )

    def _show(self, event: Event, visibility: Shown, *, is_match: bool) -> None:
        if visibility is Shown.NO and event.began <= self._opened:
            visibility = (
                Shown.MAYBE
            )  # the client's list may be younger than the version that it has
        if self._shown:
            visibility = self._shown.pop(event.key, visibility)
        lines = self.render(event, visibility, is_match=is_match)
        if lines:
            self.put(lines)

    def _line(self, event_type: str, event: Event) -> bytes:
        """The line of an event, which many clients may get."""
        key = (self.encoder.key, event_type)
        line = event.lines.get(key)
        if line is None:
            line = event.lines[key] = self.encoder.event(event_type, event.entry)
        return line

    # --- what waits for the client --------------------------------------------------------------

    def put(self, lines: bytes) -> None:
        """Append lines for the client."""
        self._lines.append(lines)
        self._count(len(lines))
        self.ready.set()

    def take(self) -> bytes:
        """The lines that wait; empty if there are none."""
        self.ready.clear()
        lines, self._lines = self._lines, []
        if self._held is None:
            self._waiting = 0
        return lines[0] if len(lines) == 1 else b"".join(lines)

    def end(self, reason: EndReason, problem: Problem | None = None) -> None:
        """End the watch; with a problem its client gets that, and nothing else that waits."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        if problem is not None:
            self._lines = [self.encoder.error(problem)]
        self._held = None
        self.ready.set()

    def _count(self, size: int) -> None:
        self._waiting += size
        if self._waiting > MAX_WAITING:
            self.end(
                EndReason.SLOW,
                GoneProblem(f"more than {MAX_WAITING} bytes were waiting for you: list again"),
            )
