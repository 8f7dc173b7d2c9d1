"""The state of one cluster: the revision counter, the stores, and the subscribers to writes.

A write is one call of `commit`: it takes the next revision, stores the object, writes the ground
truth into the history and notifies subscribers. They are notified in revision order also when one
of them writes in turn: changes are queued until all subscribers have the one before.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.storage.ground_truth import Commit, GroundTruth
from fleetbus_emulator.apiserver.storage.store import Event, EventType, Key, Store, Stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fleetbus_emulator.apiserver.storage.progress import StoreProgress
    from fleetbus_emulator.apiserver.types.resource import ResourceType

RVS_PER_SECOND = 1000  # a restarted cluster begins above its old revisions, or watches go silent


@dataclass(frozen=True, slots=True)
class Change:
    """A committed write, for subscribers. The objects are shared: never change them.

    Attributes:
        new: The object after the write; the last state for DELETED.
        old: The object before the write; None for ADDED.
    """

    type: EventType
    group: str
    resource: str
    new: dict[str, Any]
    old: dict[str, Any] | None


class State:
    """The memory of one cluster.

    Args:
        clock: The time, aware, in UTC.
        new_uid: Makes uids.
        random: Chooses generateName suffixes and the like.
        event_capacity: Events kept per resource type before the oldest are forgotten.
        history_capacity: Committed writes that the ground truth keeps in memory.
        progress: When the store reports its progress; None for always.

    Attributes:
        truth: Every committed write.
        agent: The User-Agent of the request that is being handled; empty if none is.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime],
        new_uid: Callable[[], str],
        random: Random,
        event_capacity: int,
        history_capacity: int,
        progress: StoreProgress | None = None,
    ) -> None:
        self.progress = progress
        self.clock = clock
        self.new_uid = new_uid
        self.random = random
        self.rv = int(clock().timestamp()) * RVS_PER_SECOND
        # Where the stores of built-in types begin, whenever they are made: events, and states.
        self._floor = self._oldest = self.rv
        self._first_rv = self.rv
        self.truth = GroundTruth(history_capacity)
        self.agent = ""
        self.subscribers: list[Callable[[Change], None]] = []
        self._capacity = event_capacity
        self._stores: dict[tuple[str, str], Store] = {}
        # Those of types that went, the oldest first, each with the revision at which it went.
        self._dropped: list[tuple[int, tuple[str, str], Store]] = []
        self._pending: deque[Change] = deque()
        self._telling = False

    @property
    def history(self) -> deque[Commit]:
        """The committed writes that memory holds, oldest first."""
        return self.truth.entries

    def timestamp(self) -> str:
        """Now, in whole seconds, as real servers keep times."""
        return self.clock().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def store(self, rtype: ResourceType) -> Store:
        """The store of a type; made when it is first asked for."""
        store = self._stores.get(rtype.store)
        if store is None:
            # Of a custom type there may have been a store before, of which nothing is known.
            floor = self.rv if rtype.custom else self._floor
            store = self._stores[rtype.store] = Store(floor, self._capacity)
            store.compact(self._oldest, watches=False)
        return store

    def stores(self) -> list[Store]:
        """All stores that exist."""
        return list(self._stores.values())

    def drop_store(self, rtype: ResourceType) -> None:
        """Forget a type's store; its watches end."""
        store = self._stores.pop(rtype.store, None)
        if store is not None:
            self._dropped.append((self.rv, rtype.store, store))
            store.close()

    def put(self, rtype: ResourceType, key: Key, obj: dict[str, Any], old: Stored | None) -> Stored:
        """Commit a create or an update; takes ownership of `obj`."""
        event_type: EventType = "MODIFIED" if old else "ADDED"
        return self._commit(rtype, event_type, key, obj, old)

    def remove(self, rtype: ResourceType, old: Stored) -> Stored:
        """Commit a deletion: the last state, under the deletion's own revision."""
        last = {**old.obj, "metadata": dict(old.obj["metadata"])}
        return self._commit(rtype, "DELETED", old.key, last, old)

    def _commit(
        self,
        rtype: ResourceType,
        event_type: EventType,
        key: Key,
        obj: dict[str, Any],
        old: Stored | None,
    ) -> Stored:
        store = self.store(rtype)
        if self.progress is not None:
            self.progress.reported(self.rv)
        self.rv += 1
        obj["metadata"]["resourceVersion"] = str(self.rv)
        stored = Stored(key, obj, self.rv, sort_keys=rtype.custom)
        store.commit(Event(event_type, stored, old))
        group, resource = rtype.store
        self.truth.append(
            Commit(
                number=self.truth.last + 1,
                time=self.clock(),
                type=event_type,
                rv=self.rv,
                before=old.rv if old else None,
                group=group,
                version=rtype.storage_version,
                resource=resource,
                namespace=key[0],
                name=key[1],
                uid=obj["metadata"].get("uid", ""),
                agent=self.agent,
            )
        )
        self._tell(Change(event_type, group, resource, obj, old.obj if old else None))
        return stored

    def _tell(self, change: Change) -> None:
        self._pending.append(change)
        if self._telling:
            return
        self._telling = True
        try:
            while self._pending:
                change = self._pending.popleft()
                for subscriber in tuple(self.subscribers):
                    subscriber(change)
        finally:
            self._telling = False

    def compact(self, rv: int, *, watches: bool) -> None:
        """Forget the states before `rv`; with `watches` also the events up to it."""
        self._oldest = max(self._oldest, rv)
        if watches:
            self._floor = max(self._floor, rv)
        for store in (*self._stores.values(), *(store for _, _, store in self._dropped)):
            store.compact(rv, watches=watches)

    def roll_back(self, rv: int) -> None:
        """Return to the state at `rv`, as a cluster does whose etcd is restored from a backup.

        Raises:
            ValueError: The log does not reach back that far, or `rv` is in the future.
        """
        # Of a type that came and went several times the oldest store is that of the time.
        gone = {place: store for went, place, store in reversed(self._dropped) if went > rv}
        stores = {**self._stores, **gone}
        oldest = max([self._first_rv, *(store.forgotten for store in stores.values())])
        if not oldest <= rv <= self.rv:
            extent = f"it holds {oldest} to {self.rv}"
            raise ValueError(f"cannot roll back to {rv}: not within the event log, {extent}")
        for store in stores.values():
            store.roll_back(rv)
        self._stores = stores
        self._dropped = [dropped for dropped in self._dropped if dropped[0] <= rv]
        self._floor, self._oldest = min(self._floor, rv), min(self._oldest, rv)
        number, now = self.truth.last + 1, self.clock()
        self.truth.append(Commit(number, now, "ROLLED_BACK", rv=rv, before=self.rv))
        self.rv = rv
