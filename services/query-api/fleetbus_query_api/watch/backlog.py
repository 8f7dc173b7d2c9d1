"""Computes the changes that the client of a watch has missed when it begins (rule A5)."""

from __future__ import annotations

from collections.abc import Sequence

from fleetbus.snapshot import Entry
from fleetbus.snapshot.reads.changed import Change, ObjectState
from fleetbus.snapshot.reads.feed import ExpiredPosition
from fleetbus_query_api.watch.events import Key, Settler, Shown, key_of
from fleetbus_query_api.watch.subscription import Subscription


class Listed:
    """A list of the present state that is sent while events are held back.

    Args:
        clusters: that are listed.
        known_version: a version from which the client may resume meanwhile. What is listed gets
            no later one: who resumes from that would miss events that are held back.
    """

    def __init__(self, clusters: Sequence[str], known_version: int) -> None:
        self.clusters = clusters
        self.version = 0
        self.late: dict[Key, int] = {}
        self._known = known_version

    def begin(self, version: int) -> None:
        """Take the version of a page."""
        self.version = self.version or version

    def take(self, entry: Entry) -> Entry:
        """Take an object; returns it as it is sent."""
        if entry.counter > self.version:
            self.late[entry.cluster, entry.namespace, entry.name] = entry.counter
        return entry._replace(counter=min(entry.counter, self._known))

    def shown(self) -> dict[Key, Shown]:
        """The objects that the client knows and of which an event follows."""
        return dict.fromkeys(self.late, Shown.YES)


class Missed:
    """The changes that a client has missed of its resource.

    Args:
        subscription: of the client.
    """

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._settler = Settler()
        self.last: dict[Key, Change] = {}
        """The last change of each object, in the order of versions."""

    def take(self, change: Change) -> None:
        """Take the next change.

        Raises:
            ExpiredPosition: objects went that were not deleted.
        """
        subscription, key = self._subscription, key_of(change)
        if change.type == "dropped" and change.cluster in subscription.clusters:
            raise ExpiredPosition(f"cluster {change.cluster} has left the fleet: list again")
        if change.type == "dropped" or not subscription.sees(*key):
            return
        if change.type == "unwatched":
            raise ExpiredPosition("objects are no longer watched: list again")
        before = self.last.pop(key, None)
        if before is not None:
            self._settler.skip(before)
        self.last[key] = change

    def render(self, change: Change, state: ObjectState | None) -> bytes:
        """The lines for the last change of an object."""
        event = self._settler.settle(change, state)
        if event is None:
            return b""
        selector = self._subscription.selector
        is_match = event.is_live and selector.matches(event)
        visibility = self._shown_before(existed=event.existed)
        return self._subscription.render(event, visibility, is_match=is_match)

    def shown(self) -> dict[Key, Shown]:
        """Whether the client knows objects of which an event follows."""
        return {key: self._shown_before(existed=existed) for key, existed in self._settler.left()}

    def _shown_before(self, *, existed: bool) -> Shown:
        # The rows of a list are read after its version: it may show what was created since.
        is_known = existed and not self._subscription.selector.is_by_content
        return Shown.YES if is_known else Shown.MAYBE
