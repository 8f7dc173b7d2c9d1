"""Remembers what this process has seen on the targets, to spare requests (rule D11).

Each apply comes back as an event. What the object is like at that version was the answer to the
apply, so a round that the event triggers would read three things to find nothing. Whatever happens
to the object later has another version and an event of its own. Another process knows nothing of
the write; its round is spared nothing, and does no harm.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb

_MOST: Final = 100_000
"""The oldest go first; an event is under way for seconds at most."""
_AGAIN: Final = timedelta(seconds=1)
_AGAIN_AT_MOST: Final = timedelta(minutes=5)


class SeenOnTargets:
    """The versions that applies of this process have made, namespaces, and types that are missing.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._missing: OrderedDict[tuple[str, str, str], tuple[float, float]] = OrderedDict()
        """Types that are not served: since when, and when they were last asked for."""
        self._versions: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._namespaces: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note_write(self, cluster: str, made: Mapping[str, Any]) -> None:
        """Remember the answer to an apply on a cluster."""
        metadata = made["metadata"]
        self._versions[cluster, metadata["uid"], metadata["resourceVersion"]] = None
        if len(self._versions) > _MOST:
            self._versions.popitem(last=False)

    def has_made(self, event: Event) -> bool:
        """Whether an event shows just what an apply of this process made of an object."""
        if event.verb is Verb.DELETED:
            return False
        return (event.cluster, event.uid, event.resource_version) in self._versions

    def note_missing_type(self, cluster: str, api_version: str, kind: str) -> timedelta:
        """Remember that a type is not served, and tell when to discover it again (rule D9).

        A second at first, for a definition that was just applied; then as long as it has been
        missing already, up to five minutes.
        """
        now, key = self._now(), (cluster, api_version, kind)
        since, last = self._missing.get(key, (now, now))
        if now - last > 2 * _AGAIN_AT_MOST.total_seconds():
            since = now  # nobody has wanted it for a while
        self._missing[key] = since, now
        if len(self._missing) > _MOST:
            self._missing.popitem(last=False)
        return min(_AGAIN_AT_MOST, max(_AGAIN, timedelta(seconds=now - since)))

    def note_type(self, cluster: str, api_version: str, kind: str) -> None:
        """Remember that a type is served."""
        self._missing.pop((cluster, api_version, kind), None)

    def note_namespace(self, cluster: str, name: str) -> None:
        """Remember that a namespace exists."""
        self._namespaces[cluster, name] = None
        if len(self._namespaces) > _MOST:
            self._namespaces.popitem(last=False)

    def forget_namespace(self, cluster: str, name: str) -> None:
        """Forget that a namespace exists: the server has denied it."""
        self._namespaces.pop((cluster, name), None)

    def has_namespace(self, cluster: str, name: str) -> bool:
        """Whether a namespace existed when it was last asked for; it may be gone by now."""
        return (cluster, name) in self._namespaces
