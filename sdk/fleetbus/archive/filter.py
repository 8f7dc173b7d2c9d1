"""Which events are wanted, and which members of a chunk can hold one of them."""

from __future__ import annotations

from dataclasses import dataclass

from fleetbus_proto.events import Event

Key = tuple[str, str, str, str, str]
"""Group, resource, cluster, namespace, name: the order of the lines in a chunk."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events of these objects; None stands for any."""

    cluster: str | None = None
    group: str | None = None
    """`core` for the core group."""
    resource: str | None = None
    """The plural, like `deployments`."""
    namespace: str | None = None
    """Empty for objects of the cluster itself."""
    name: str | None = None

    @property
    def key(self) -> tuple[str | None, ...]:
        """The wanted parts in the order of `Key`."""
        return (self.group, self.resource, self.cluster, self.namespace, self.name)

    def matches(self, key: Key) -> bool:
        """Whether the events of this object are wanted."""
        return all(want is None or want == have for want, have in zip(self.key, key, strict=True))

    def may_match(self, first: Key, last: Key) -> bool:
        """Whether an object from `first` to `last`, in order, can be wanted."""
        prefix: list[str] = []
        for want in self.key:
            if want is None:
                break
            prefix.append(want)
        key_prefix = tuple(prefix)
        if not first[: len(key_prefix)] <= key_prefix <= last[: len(key_prefix)]:
            return False
        return self._fits_shared(first, last)

    def _fits_shared(self, first: Key, last: Key) -> bool:
        """Compare the parts that all keys from first to last share, and the next one."""
        for want, low, high in zip(self.key, first, last, strict=True):
            if want is not None and not low <= want <= high:
                return False
            if low != high:
                return True
        return True


def key_of(event: Event) -> Key:
    """The key of an event's object."""
    return (event.group, event.resource, event.cluster, event.namespace, event.name)
