"""Events of a watch, from changes of the feed and from what became of their objects (rule A5).

The feed has no bodies: they are read when a change is delivered. Where a later change shows
already, the earlier one is skipped, and what a client knew of the object by then is remembered for
the later one: whether it is new to the client, and whether it was deleted in between and is another
object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from fleetbus.snapshot import Entry
from fleetbus.snapshot.reads.changed import Change, ObjectState
from fleetbus_query_api.responses.render import body_of

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"

Key: TypeAlias = tuple[str, str, str]
"""Cluster, namespace and name: an object of a resource."""


def key_of(change: Change) -> Key:
    """The object that a change is about."""
    return change.cluster, change.namespace, change.name


class Shown(Enum):
    """Whether an object was shown to a client before an event."""

    YES = "yes"
    NO = "no"
    MAYBE = "maybe"
    """The client has listed with a selector, and the object changed."""


class Event:
    """A settled change of one object.

    Attributes:
        version: of the snapshot, at this change.
        entry: the object, or the last state of a deleted one.
        is_live: whether it still exists.
        existed: whether it did before, for those who got all events before.
        began: the version of the first change that it is made of: earlier ones were skipped.
        is_other: whether what existed, or a list has shown, was deleted meanwhile, and this is
            another object.
        lines: encoded for clients, by encoder and type.
    """

    __slots__ = (
        *("_labels", "_tree", "began", "entry", "existed", "is_live", "is_other", "lines"),
        "version",
    )

    def __init__(
        self,
        version: int,
        state: ObjectState,
        *,
        existed: bool,
        began: int,
        is_other: bool = False,
    ) -> None:
        self.version = version
        self.began = began
        self.entry = state.entry._replace(counter=version)
        self.is_live = state.is_live
        self.existed = existed
        self.is_other = is_other
        self.lines: dict[tuple[object, str], bytes] = {}
        self._labels = state.labels if state.is_live else None
        self._tree: Any = _UNREAD

    @property
    def key(self) -> Key:
        """The object that it is about."""
        return self.entry.cluster, self.entry.namespace, self.entry.name

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels; empty if they are unknown."""
        if self._labels is None:
            self._labels = _labels_of(self.tree or {})
        return self._labels

    @property
    def tree(self) -> Mapping[str, Any] | None:
        """The object as a tree, decoded once; None if its body is unknown or unreadable."""
        if self._tree is _UNREAD:
            self._tree = _decode(body_of(self.entry))
        return self._tree

    @property
    def predecessor(self) -> Event:
        """The deletion of the object that existed before this other one, of which nothing is left.

        Its version is just before that of this event: who resumes from it gets this event.
        """
        return make_bare(self.key, self.version - 1)


_UNREAD: Final = object()


def make_bare(key: Key, version: int, *, existed: bool = True, began: int = 0) -> Event:
    """The deletion of an object of which nothing is left but its name."""
    cluster, namespace, name = key
    entry = Entry(cluster, namespace, name, "", "", b"", version, "absent", 0)
    state = ObjectState(entry, is_live=False, labels={})
    return Event(version, state, existed=existed, began=began or version)


def transitions(visibility: Shown, event: Event, *, is_match: bool) -> Iterator[tuple[str, Event]]:
    """The events that a client gets, of which one may be a deletion that was skipped.

    Args:
        visibility: whether the client knows the object.
        event: what became of it.
        is_match: whether it is live, and selected.
    """
    if event.is_other and visibility is not Shown.NO and is_match:
        yield DELETED, event.predecessor
        visibility = Shown.NO
    if is_match:
        yield (MODIFIED if visibility is Shown.YES else ADDED), event
    elif visibility is not Shown.NO:
        yield DELETED, event


class _Skipped(NamedTuple):
    """The state of an object before its skipped events."""

    existed: bool
    was_deleted: bool
    began: int


class Settler:
    """Makes events of changes, of which it gets all of an object in the order of versions."""

    def __init__(self) -> None:
        # Of objects whose last change was skipped: the one that shows is still to come.
        self._skipped: dict[Key, _Skipped] = {}

    def skip(self, change: Change) -> None:
        """Take a change after which another one of the same object comes."""
        before = self._before(change)
        was_deleted = before.was_deleted or change.type == "deleted"
        self._skipped[key_of(change)] = before._replace(was_deleted=was_deleted)

    def forget(self, change: Change) -> None:
        """Take a change that is not delivered to anybody: who comes later knows it."""
        self._skipped.pop(key_of(change), None)

    def settle(self, change: Change, state: ObjectState | None) -> Event | None:
        """Take a change and its object as read after it; None if there is nothing to deliver."""
        key, is_live = key_of(change), state is not None and state.is_live
        before = self._before(change)
        if change.type == "deleted":
            if is_live:  # it was created again since
                self.skip(change)
                return None
        elif state is None or not is_live or state.entry.counter != change.version:
            self.skip(change)
            return None
        self._skipped.pop(key, None)
        existed, began = before.existed, before.began
        if state is None:
            return make_bare(key, change.version, existed=existed, began=began)
        is_other = is_live and before.was_deleted
        return Event(change.version, state, existed=existed, began=began, is_other=is_other)

    def left(self) -> Iterator[tuple[Key, bool]]:
        """The objects whose last change was skipped, and whether they existed before."""
        for key, skipped in self._skipped.items():
            yield key, skipped.existed

    def _before(self, change: Change) -> _Skipped:
        """Whether the object existed as far as was delivered, and was deleted since."""
        return self._skipped.get(key_of(change)) or _Skipped(
            change.type != "added", was_deleted=False, began=change.version
        )


def _decode(body: bytes) -> Mapping[str, Any] | None:
    try:
        tree: Any = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # a number beyond a double: one such object must not end a watch
    return cast("Mapping[str, Any]", tree) if isinstance(tree, dict) else None


def _labels_of(tree: Mapping[str, Any]) -> Mapping[str, str]:
    metadata: Any = tree.get("metadata")
    labels: Any = cast("Any", metadata).get("labels") if isinstance(metadata, dict) else None
    return cast("Mapping[str, str]", labels) if isinstance(labels, dict) else {}
