"""Which objects the watches with a selector have shown: those that match (rule A5).

An object that stops matching is deleted for its watches, and one that starts is added. So it must
be known whether an object matched before it changed, which neither the feed nor the snapshot tell.
All watches with the same selector share what they have shown, which is read once, and then kept
current by the events.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from fleetbus.kube.field_paths import TooManyValues
from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import ListQuery, Page
from fleetbus_query_api.objects.listing import push_down
from fleetbus_query_api.watch.events import Event, Shown
from fleetbus_query_api.watch.shown_keys import Key, ShownKeys


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects objects of a resource by anything but their cluster; hashable.

    Attributes:
        namespace: the only one; empty for all.
        name: likewise.
    """

    namespace: str = ""
    name: str = ""
    labels: LabelSelector = LabelSelector()  # noqa: RUF009  # frozen
    fields: FieldSelector = FieldSelector()  # noqa: RUF009  # frozen

    @classmethod
    def of(cls, namespace: str, name: str, labels: LabelSelector, fields: FieldSelector) -> Self:
        """A selector; fields that are a namespace or a name become those."""
        query = ListQuery(clusters=(), resource="", namespace=namespace or None, name=name or None)
        query, other_fields = push_down(query, fields)
        return cls(query.namespace or "", query.name or "", labels, other_fields)

    @property
    def is_by_content(self) -> bool:
        """Whether an object may start or stop matching."""
        return bool(self.labels) or bool(self.fields)

    @property
    def weight(self) -> int:
        """Number of requirements with which each change of an object is compared."""
        return len(self.labels.requirements) + len(self.fields.requirements)

    def has(self, namespace: str, name: str) -> bool:
        """Whether an object of this name can match."""
        return (not self.namespace or namespace == self.namespace) and (
            not self.name or name == self.name
        )

    def matches(self, event: Event) -> bool:
        """Whether the object of an event matches, or did when it was deleted.

        Without a body nothing but its labels is known, and fields do not match.
        """
        if self.labels and not self.labels.matches(event.labels):
            return False
        if not self.fields:
            return True
        tree = event.tree
        try:
            return tree is not None and self.fields.matches(tree)
        except TooManyValues:
            return False  # undecided, as without a body


Pages: TypeAlias = AsyncIterator[Page]


class _InCluster:
    """The objects of one cluster that a selector matches.

    Args:
        cluster: its name.
        keys: of the resource.
        bit: of the selector.
    """

    def __init__(self, cluster: str, keys: ShownKeys, bit: int) -> None:
        self._cluster = cluster
        self._keys = keys
        self._bit = bit
        # While the keys are read: what is known of objects that changed meanwhile.
        self._changed: dict[Key, bool] = {}
        self._read_until: int | None = None
        self._is_read = False
        self._is_left_out = False

    def update(self, key: Key, event: Event, *, is_match: bool) -> Shown:
        unknown = Shown.MAYBE if event.existed else Shown.NO
        if self._is_left_out:
            return unknown
        if self._read_until is not None and event.version > self._read_until:
            self._merge_changed()
        if self._is_read:
            visibility = Shown.YES if self._keys.has(self._cluster, key, self._bit) else Shown.NO
            self.set(key, is_match=is_match)
            return visibility
        before = self._changed.get(key)
        self._changed[key] = is_match
        if before is None:
            return unknown
        return Shown.YES if before else Shown.NO

    def complete(self, version: int) -> None:
        """Take that everything was read by this version."""
        self._read_until = version

    def leave_out(self) -> None:
        """Take that there is no room for what matches here."""
        self._is_left_out = True
        self._changed.clear()

    def set(self, key: Key, *, is_match: bool) -> None:
        """Note whether an object matches."""
        self._keys.set(self._cluster, key, self._bit, is_match=is_match)

    def _merge_changed(self) -> None:
        """Note the outcomes of the events that the keys may have been read before, or after."""
        for key, is_match in self._changed.items():
            self.set(key, is_match=is_match)
        self._changed.clear()
        self._read_until, self._is_read = None, True


class Matching:
    """The objects that the watches of a resource with one selector have shown.

    Args:
        selector: theirs.
        keys: of the resource.
        read: reads what matches at present in a cluster, page by page.
        version: reads the present version.
    """

    def __init__(
        self,
        selector: Selector,
        keys: ShownKeys,
        read: Callable[[str, Selector], Pages],
        version: Callable[[], Awaitable[int]],
    ) -> None:
        self._selector = selector
        self._keys = keys
        self._bit = keys.allot()
        self._read = read
        self._version = version
        self._clusters: dict[str, _InCluster] = {}
        self.users = 0
        """Number of watches that use it."""
        self.outcome = (Shown.MAYBE, False)
        """Outcome of the last event: how its object was known before, and whether it matches
        now."""

    def update(self, event: Event) -> None:
        """Take the next event of the resource."""
        cluster, namespace, name = event.key
        if not self._selector.has(namespace, name):
            return
        is_match = event.is_live and self._selector.matches(event)
        # Of a cluster that nobody has begun to read, nobody sees the event either.
        visibility = Shown.MAYBE if event.existed else Shown.NO
        if (in_cluster := self._clusters.get(cluster)) is not None:
            visibility = in_cluster.update((namespace, name), event, is_match=is_match)
        self.outcome = (visibility, is_match)

    def forget(self, cluster: str) -> None:
        """Take that a cluster is gone, or that nobody watches it; also while it is read."""
        if self._clusters.pop(cluster, None) is not None:
            self._keys.retire(cluster, self._bit)

    def keep(self, clusters: set[str]) -> None:
        """Forget all but these clusters: only theirs are kept current."""
        for cluster in self._clusters.keys() - clusters:
            self.forget(cluster)

    def close(self) -> None:
        """Take that no watch uses it any more."""
        self.keep(set())
        self._keys.release(self._bit)

    async def load(self, cluster: str) -> None:
        """Read what matches in a cluster, unless that is known, or being read.

        Until it is known, an object that changes counts as one that may have been shown.

        Raises:
            redis.exceptions.RedisError: the store is away; to be repeated.
        """
        if cluster in self._clusters:
            return
        in_cluster = self._clusters[cluster] = _InCluster(cluster, self._keys, self._bit)
        try:
            await self._keys.prepare(cluster)
            async for page in self._read(cluster, self._selector):
                if self._clusters.get(cluster) is not in_cluster:
                    return
                for entry in page.entries:
                    in_cluster.set((entry.namespace, entry.name), is_match=True)
                if self._keys.count.is_full:
                    in_cluster.leave_out()
                    return
            in_cluster.complete(await self._version())
        except BaseException:
            if self._clusters.get(cluster) is in_cluster:
                self.forget(cluster)
            raise
