"""Remembers what targets have and lack, to spare requests (rules D9, D11).

Each apply comes back as an event. What the object is like at that version was the answer to the
apply, so a round that the event triggers would read three things to find nothing. Whatever happens
to the object later has another version and an event of its own. Another process knows nothing of
the write; its round is spared nothing, and does no harm.

Types that are missing are discovered again less and less often, because each attempt is a request.
Watchers notice a new type by themselves: as soon as one reports it, those who wait are woken.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

import structlog

from fleetbus.errors import StoreError
from fleetbus.kube.applied import ServerAnswers, digest
from fleetbus.ownership import Owner
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus.store.connection import store_errors
from fleetbus.workqueue.errors import WorkqueueError
from fleetbus_proto.events import Event
from fleetbus_proto.resources import CORE
from fleetbus_proto.subjects import Verb

log = structlog.get_logger()

_MOST_NOTES: Final = 100_000
"""The oldest go first; an event is under way for seconds at most."""
_MOST_TYPES: Final = 100_000
"""The types that were wanted longest ago go first."""
_MOST_OWNERS: Final = 1_000
"""Owners of one type; more of them are not woken, and try again by themselves."""
_MOST_WRONG: Final = 10_000
"""The oldest go first; one that is forgotten costs a dozen dry runs."""
AGAIN: Final = timedelta(seconds=1)
"""The first pause before a type that is not served is discovered again."""
_AGAIN_AT_MOST: Final = timedelta(minutes=5)
_FORGOTTEN: Final = 2 * _AGAIN_AT_MOST
_EVERY: Final = timedelta(seconds=0.5)
_Type: TypeAlias = tuple[str, str, str]
"""Cluster, apiVersion, kind."""


@dataclass(slots=True)
class _Missing:
    since: float
    last: float
    """When somebody wanted it last."""
    owners: dict[str, Owner] = field(default_factory=dict[str, Owner])
    """By UID: who waits."""
    is_announced: bool = False
    """Whether those who wait were woken since its watcher last did not report it."""
    is_news: bool = False
    """Whether nobody has asked the cluster since they were woken."""


class MissingTypes:
    """The types that targets do not serve, as far as this process knows.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._missing: OrderedDict[_Type, _Missing] = OrderedDict()

    def note_missing(self, cluster: str, api_version: str, kind: str, owner: Owner) -> timedelta:
        """Remember that a type is not served, and tell when to discover it again.

        A second at first, for a definition that was just applied; then as long as it has been
        missing already, up to five minutes.
        """
        now, key = self._now(), (cluster, api_version, kind)
        missing = self._missing.setdefault(key, _Missing(now, now))
        self._missing.move_to_end(key)
        if now - missing.last > _FORGOTTEN.total_seconds():
            missing.since = now  # nobody has wanted it for a while
        missing.last = now
        if len(missing.owners) < _MOST_OWNERS:
            missing.owners[owner.uid] = owner
        if len(self._missing) > _MOST_TYPES:
            self._missing.popitem(last=False)
        return min(_AGAIN_AT_MOST, max(AGAIN, timedelta(seconds=now - missing.since)))

    def note_served(self, cluster: str, api_version: str, kind: str) -> None:
        """Remember that a type is served."""
        self._missing.pop((cluster, api_version, kind), None)

    def take_news(self, cluster: str, api_version: str, kind: str) -> bool:
        """Whether its watcher has reported a type since the cluster was last asked; only once."""
        missing = self._missing.get((cluster, api_version, kind))
        is_news = missing is not None and missing.is_news
        if missing is not None:
            missing.is_news = False
        return is_news

    def groups(self) -> set[tuple[str, str]]:
        """The clusters and API groups of which somebody waits for a type."""
        oldest = self._now() - _FORGOTTEN.total_seconds()
        while self._missing and next(iter(self._missing.values())).last < oldest:
            self._missing.popitem(last=False)
        return {(cluster, _group_of(version)) for cluster, version, _ in self._missing}

    def take_reported(
        self, cluster: str, group: str, records: Iterable[ResourceRecord]
    ) -> Sequence[Owner]:
        """Who waits for a type that its watcher has begun to report; each is returned once.

        Args:
            cluster: its name.
            group: an API group.
            records: of the resources of that group there.
        """
        reported = {record.kind for record in records if record.state is not ResourceState.UNKNOWN}
        woken: dict[str, Owner] = {}
        for (name, version, kind), missing in self._missing.items():
            if (name, _group_of(version)) != (cluster, group):
                continue
            if kind in reported and not missing.is_announced:
                woken.update(missing.owners)
                missing.is_news = True
                missing.owners.clear()
                # It may be served only a moment later.
                missing.since = self._now()
            missing.is_announced = kind in reported
        return list(woken.values())


class WrongValues:
    """The fields with values that clusters cannot read, by what was applied."""

    def __init__(self) -> None:
        self._fields: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    def get(self, cluster: str, template: Mapping[str, Any]) -> str | None:
        """The field; empty if it was looked for in vain, None if it was not."""
        return self._fields.get((cluster, digest(template)))

    def note(self, cluster: str, template: Mapping[str, Any], field_path: str) -> None:
        """Remember a field."""
        self._fields[cluster, digest(template)] = field_path
        if len(self._fields) > _MOST_WRONG:
            self._fields.popitem(last=False)


class TargetMemory:
    """The versions that applies of this process have made, and what targets have and lack.

    Attributes:
        types: the types that they lack.
        answers: the objects that their servers take for what was applied to them.
        wrong_values: the fields whose values they cannot read.
    """

    def __init__(self) -> None:
        self.types = MissingTypes()
        self.answers = ServerAnswers()
        self.wrong_values = WrongValues()
        self._versions: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._namespaces: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note_write(self, cluster: str, applied: Mapping[str, Any]) -> None:
        """Remember the answer to an apply on a cluster."""
        metadata = applied["metadata"]
        self._versions[cluster, metadata["uid"], metadata["resourceVersion"]] = None
        if len(self._versions) > _MOST_NOTES:
            self._versions.popitem(last=False)

    def has_made(self, event: Event) -> bool:
        """Whether an event shows just what an apply of this process made of an object."""
        if event.verb is Verb.DELETED:
            return False
        return (event.cluster, event.uid, event.resource_version) in self._versions

    def note_namespace(self, cluster: str, name: str) -> None:
        """Remember that a namespace exists."""
        self._namespaces[cluster, name] = None
        if len(self._namespaces) > _MOST_NOTES:
            self._namespaces.popitem(last=False)

    def forget_namespace(self, cluster: str, name: str) -> None:
        """Forget that a namespace exists: the server has denied it."""
        self._namespaces.pop((cluster, name), None)

    def has_namespace(self, cluster: str, name: str) -> bool:
        """Whether a namespace existed when it was last asked for; it may be gone by now."""
        return (cluster, name) in self._namespaces


class TypeWatch:
    """Wakes those who wait for a type once its watcher reports it.

    It asks the store, and only while somebody waits: whatever is reported while this process looks
    away is found at its next look.

    Args:
        missing: of this process.
        reader: the snapshot.
        requeue: enqueues a round of an owner for one cluster.
    """

    def __init__(
        self,
        *,
        missing: MissingTypes,
        reader: SnapshotReader,
        requeue: Callable[[Owner, str, timedelta], Awaitable[None]],
    ) -> None:
        self._missing = missing
        self._reader = reader
        self._requeue = requeue

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                for cluster, group in self._missing.groups():
                    await self._look(cluster, group)
            except (StoreError, WorkqueueError) as error:
                # The store is away: those who were not woken try again by themselves.
                log.debug("types_not_read", error=str(error))
            await asyncio.sleep(_EVERY.total_seconds())

    async def _look(self, cluster: str, group: str) -> None:
        with store_errors("the types of clusters cannot be read"):
            records = await self._reader.resources(cluster, group=group)
        for owner in self._missing.take_reported(cluster, group, records):
            await self._requeue(owner, cluster, timedelta())
            log.info("missing_type_reported", cluster=cluster, group=group, owner=owner.name)


def _group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0] or CORE
