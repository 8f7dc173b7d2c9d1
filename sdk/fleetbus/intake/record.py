"""Stores what a controller has seen and reconciled, object by object (rule P8).

Another consumer may have applied an event first, so the snapshot says nothing about this
controller. Its own record does: which version it saw last and whom that woke, which of its watches
that version matched, and which version a successful reconcile has read. It is kept beside the
controller's queue and written in the step that enqueues (`ControllerStore`): neither is ever ahead
of the other, also in a store that was set back.
"""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from fleetbus.intake.last_runs import LastRuns
from fleetbus.process.cancellation import cancellable
from fleetbus.reconcile import Request
from fleetbus.run.current import ObjectRef, Run, Version
from fleetbus.snapshot.reads.walk import scan_hash
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import QueuePolicy, decode_trigger, encode_trigger
from fleetbus.workqueue.scripts import NO_ROWS, Ending, Rows, Transitions
from fleetbus_proto import keys
from fleetbus_proto.versions import is_comparable, version_key

if TYPE_CHECKING:
    from fleetbus.controller.controller import Controller

log = structlog.get_logger()

STATE_BYTES: Final = 64 * 1024
"""A larger object is not kept for predicates: its next change has no old state."""
MAX_TARGETS: Final = 64
"""Requests stored per mapped watch of an object; if there are more, the map is called again."""
CHUNK: Final = 200
"""Objects per script call: each has five arguments (rule P16)."""
_SCAN: Final = 500
_REVISION_BYTES: Final = 8
TOO_MANY: Final = "*"
"""Stored instead of more than `MAX_TARGETS` requests."""


class LastSeen(msgspec.Struct, array_like=True, frozen=True):
    """The state of an object that a controller has seen last."""

    version: Version
    """Its incarnation number and resourceVersion."""
    woken: Version
    """The last version that woke the object's own request; a run that has read it is enough."""
    members: dict[int, list[str] | None]
    """By the watches that the object matches: None for an identity watch, else the requests it woke
    last, as `<cluster>/<namespace>/<name>`."""
    is_left: bool = False
    """It once matched an identity watch, and matches none now."""
    unmatched: list[int] = []
    """Members whose predicate lets changes pass, but does not match the object as it is."""
    state: bytes = b""
    """The object itself, compressed, for predicates; empty if no watch has one."""
    is_gone: bool = False
    """It was deleted, and no run is known to have read that: an object that comes back under its
    name and does not match has left. Forgotten by the run that reads it (record_read.lua)."""

    @property
    def is_member(self) -> bool:
        """Whether the object matches an identity watch."""
        return any(targets is None for targets in self.members.values())


NEVER: Final[Version] = (0, "")
_decode: Final = msgspec.msgpack.Decoder(LastSeen).decode
_GONE: Final = re.compile(rb"\A\d+/\d+\n")
_encode: Final = msgspec.msgpack.Encoder().encode


class StoredRecord(NamedTuple):
    """The record of one object."""

    last_seen: LastSeen | None = None
    """None if it was never seen, or matched nothing."""
    read: Version | None = None
    """The newest version that a successful reconcile has read."""
    revision: bytes = b""
    """Revision of `last_seen`, for optimistic concurrency: a change names the revision it is based
    on."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is stored."""
        return self.last_seen is None and self.read is None


NO_RECORD: Final = StoredRecord()


class _Read(NamedTuple):
    """The version of an object that a successful run has read."""

    ref: ObjectRef
    version: Version
    what: str
    """`live`, `absent`, or `unread`: it was woken by this version and did not read the object."""
    was_left: bool
    """`Request.left` of the run."""


class Change(NamedTuple):
    """One write to the record."""

    ref: ObjectRef
    stored: StoredRecord
    """The record it is based on; if that has changed since, nothing is written."""
    last_seen: LastSeen | None
    """None to forget the object."""

    @property
    def keeps_all(self) -> bool:
        """Whether the record stays as it is: what depends on it needs it to be the same still."""
        is_forgotten = self.last_seen is None and self.stored.read is not None
        return self.last_seen == self.stored.last_seen and not is_forgotten


_Row = TypeVar("_Row", Change, _Read)


class Record:
    """The records of one controller, shared by its processes.

    Args:
        redis: where its queue is.
        controller: whose; it must be whole.
    """

    def __init__(self, redis: Redis, controller: Controller) -> None:
        self._redis = redis
        self._name = controller.name
        self._index = keys.queue(controller.name, "record")
        self._watches = controller.watches
        self.last_runs = LastRuns(redis, controller.name)
        """The result of the last run of each request."""
        self._calls = Transitions(controller.name, QueuePolicy())
        own = [watch for watch in controller.watches if watch.is_identity and watch.resource]
        self._own = sorted({watch.resource.key for watch in own if watch.resource})
        # An object can only leave a watch that does not match every object.
        self._leavable = [
            key
            for key in self._own
            if all(w.is_filtered for w in own if w.resource and w.resource.key == key)
        ]

    # --- what was seen --------------------------------------------------------------------------

    async def load(self, refs: Iterable[ObjectRef]) -> dict[ObjectRef, StoredRecord]:
        """Load the records of these objects; an object without one has an empty record.

        Raises:
            redis.exceptions.RedisError: the store is away.
        """
        [found] = (await load_together(self._redis, {self: refs})).values()
        if isinstance(found, Exception):
            raise found
        return found

    async def save(self, changes: Iterable[Change]) -> set[ObjectRef]:
        """Write; returns the objects that another process wrote first, to be evaluated again.

        Raises:
            redis.exceptions.RedisError: nobody knows whether it was written; to be repeated.
        """
        conflicts: set[ObjectRef] = set()
        todo = list(changes)
        for at in range(0, len(todo), CHUNK):
            ordered, rows = self.change_rows(todo[at : at + CHUNK])
            [answer, *_] = await self._calls.add([], records=rows).send(self._redis)
            conflicts |= {ordered[number - 1] for number in cast("list[int]", answer)}
        return conflicts

    def change_rows(self, changes: Sequence[Change]) -> tuple[list[ObjectRef], Rows]:
        """The objects in the order of the script, and its arguments that store these changes."""
        return self._rows(changes, _change_fields)

    async def scan(
        self, cluster: str, resource: str
    ) -> AsyncIterator[dict[ObjectRef, StoredRecord]]:
        """Yield all records of a resource of a cluster, in batches; some may come twice."""
        async for found in scan_hash(self._redis, self.key(cluster, resource), chunk=_SCAN):
            batch: dict[ObjectRef, StoredRecord] = {}
            for field, raw in found.items():
                namespace, name = keys.split_object_key(field.decode())
                batch[ObjectRef(cluster, resource, namespace, name)] = _read(raw)
            yield batch

    async def resources(self) -> list[tuple[str, str]]:
        """The pairs of cluster and resource key that have records."""
        members = cast("set[bytes]", await cast("Any", self._redis.smembers(self._index)))
        pairs = (member.decode().partition("|") for member in members)
        return sorted((cluster, resource) for cluster, _, resource in pairs)

    async def keep_only(self, clusters: Iterable[str]) -> None:
        """Forget other clusters, and resources that are no longer watched.

        Raises:
            redis.exceptions.RedisError: to be repeated.
        """
        wanted = set(clusters)
        for cluster, resource in await self.resources():
            group, _, plural = resource.partition("/")
            is_watched = any(watch.concerns(group, plural) for watch in self._watches)
            if cluster not in wanted or not is_watched:
                async with self._redis.pipeline(transaction=True) as pipe:
                    pipe.unlink(self.key(cluster, resource))
                    pipe.srem(self._index, f"{cluster}|{resource}")
                    await pipe.execute()

    # --- what was reconciled --------------------------------------------------------------------

    async def note_reads(self, runs: Sequence[Run]) -> None:
        """Store which version of its own object each successful run has read (rule Q12).

        Raises:
            QueueUnavailableError: to be repeated.
        """
        rows, ends = self.read_rows(runs), self.last_runs.rows([])
        try:
            with cancellable():  # redis-py sends under asyncio.wait_for
                await self._calls.done(Ending(reads=rows, runs=ends)).send(self._redis)
        except (RedisError, OSError) as e:
            raise QueueUnavailableError(str(e)) from e

    def read_rows(self, runs: Iterable[Run]) -> Rows:
        """The arguments that store which version of its own object each run has read."""
        refs = ((run, ref) for run in runs for ref in self._own_refs(run.request))
        found = (self._read_of(run, ref) for run, ref in refs)
        _, rows = self._rows([read for read in found if read is not None], _fields)
        return rows

    @property
    def may_leave(self) -> bool:
        """Whether `has_left` is ever true."""
        return bool(self._leavable)

    async def has_left(self, request: Request) -> bool:
        """Whether the request's object once matched this controller's watches, and none now.

        Raises:
            QueueUnavailableError: to be repeated.
        """
        refs = [ref for ref in self._own_refs(request) if ref.resource in self._leavable]
        try:
            with cancellable():
                held = await self.load(refs)
        except (RedisError, OSError) as e:
            raise QueueUnavailableError(str(e)) from e
        seen = [one.last_seen for one in held.values() if one.last_seen]
        return any(one.is_left for one in seen) and not any(one.is_member for one in seen)

    # --- inside ---------------------------------------------------------------------------------

    def _read_of(self, run: Run, ref: ObjectRef) -> _Read | None:
        version = run.reads.get(ref)
        if version is not None and is_comparable(version[1]):
            what = "absent" if ref in run.absent else "live"
            return _Read(ref, version, what, run.request.left)
        # It read other objects, or none: all that is certain is the version that woke it.
        is_own = ref.resource in self._leavable and run.own and ref == run.own_ref
        if is_own and run.trigger is not None and is_comparable(run.trigger[1]):
            return _Read(ref, run.trigger, "unread", run.request.left)
        return None

    def _own_refs(self, request: Request) -> list[ObjectRef]:
        place = (request.namespace, request.name)
        return [ObjectRef(request.cluster, resource, *place) for resource in self._own]

    def key(self, cluster: str, resource: str) -> str:
        """The key of the records of one resource of a cluster."""
        return keys.queue(self._name, f"record:{cluster}:{resource}")

    def _rows(
        self, items: Sequence[_Row], fields: Callable[[_Row], Sequence[Any]]
    ) -> tuple[list[ObjectRef], Rows]:
        """The objects in the order of the rows, and the rows; none without objects."""
        if not items:
            return [], NO_ROWS
        groups = _grouped(items, lambda item: item.ref)
        names = [self.key(*group) for group in groups]
        values: list[Any] = [f"{cluster}|{resource}" for cluster, resource in groups]
        ordered: list[ObjectRef] = []
        for number, members in enumerate(groups.values(), start=2):
            for item in members:
                ref = item.ref
                values += (number, keys.object_key(ref.namespace, ref.name), *fields(item))
                ordered.append(ref)
        return ordered, Rows([self._index, *names], values)


Records: TypeAlias = dict[Record, dict[ObjectRef, StoredRecord] | Exception]
"""The objects of several records, or why one could not be read."""


async def load_together(redis: Redis, wanted: Mapping[Record, Iterable[ObjectRef]]) -> Records:
    """Load objects of several records in one round trip; what fails for one is its own.

    Raises:
        redis.exceptions.RedisError: the store is away.
    """
    places: list[tuple[Record, list[ObjectRef]]] = []
    found: Records = {}
    async with redis.pipeline(transaction=False) as pipe:
        for record, refs in wanted.items():
            found[record] = {}
            for group, members in _grouped(refs, lambda ref: ref).items():
                names = [keys.object_key(ref.namespace, ref.name) for ref in members]
                pipe.hmget(record.key(*group), names)
                places.append((record, members))
        answers: list[Any] = await pipe.execute(raise_on_error=False)
    for (record, members), values in zip(places, answers, strict=True):
        stored = found[record]
        if isinstance(values, Exception):
            found[record] = values
        elif not isinstance(stored, Exception):
            stored.update(zip(members, map(_read, values), strict=True))
    return found


async def read_stored(redis: Redis, controller: str, ref: ObjectRef) -> StoredRecord:
    """Read the record of an object, in a process that does not host the controller.

    Raises:
        redis.exceptions.RedisError: the store is away.
    """
    key = keys.queue(controller, f"record:{ref.cluster}:{ref.resource}")
    field = keys.object_key(ref.namespace, ref.name)
    return _read(await cast("Any", redis.hget(key, field)))


def mapped_requests(controller: str, held: StoredRecord) -> tuple[list[Request], bool]:
    """The requests that an object woke last through a `map` or an owner mark.

    Returns:
        The requests, and whether there were more than the record keeps.
    """
    members = held.last_seen.members.values() if held.last_seen else ()
    items = dict.fromkeys(item for targets in members for item in targets or ())
    parts = (item.split("/", 2) for item in items if item != TOO_MANY)
    requests = [Request(controller, cluster, ns, name) for cluster, ns, name in parts]
    return requests, TOO_MANY in items


def pack(body: bytes) -> bytes:
    """Compress an object; empty if it is too large to be kept."""
    packed = zlib.compress(body, level=1)
    return packed if len(packed) <= STATE_BYTES else b""


def unpack(state: bytes) -> bytes:
    """Decompress an object's JSON."""
    return zlib.decompress(state)


def is_older(version: Version, than: Version) -> bool:
    """Whether a version comes before another (rule P2)."""
    return (version[0], version_key(version[1])) < (than[0], version_key(than[1]))


def _grouped(items: Iterable[Any], ref_of: Callable[[Any], ObjectRef]) -> dict[Any, list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        ref = ref_of(item)
        groups.setdefault((ref.cluster, ref.resource), []).append(item)
    return groups


def _read(raw: bytes | None) -> StoredRecord:
    if raw is None:
        return NO_RECORD
    read, _, seen = raw.partition(b"\n")
    last_seen = _read_last_seen(_GONE.sub(b"", seen[_REVISION_BYTES:], count=1)) if seen else None
    return StoredRecord(last_seen, decode_trigger(read), seen[:_REVISION_BYTES])


def _read_last_seen(packed: bytes) -> LastSeen | None:
    try:
        return _decode(packed)
    except msgspec.DecodeError as e:
        # Treated as absent: the object is enqueued, and the next evaluation writes the record.
        log.warning("record_unreadable", error=str(e))
        return None


def _change_fields(change: Change) -> tuple[bytes, str, bytes]:
    before, after = change.stored.last_seen, change.last_seen
    if change.keeps_all:
        return (change.stored.revision, "", b"=")
    if after is None:
        return (change.stored.revision, "", b"")
    # What a run has read proves nothing once runs receive the opposite `left`.
    is_void = (before is not None and before.is_left) != after.is_left
    # The version of a deletion stands in front, where the Lua script that forgets it can read it.
    gone = encode_trigger(*after.version) + b"\n" if after.is_gone else b""
    value = _new_revision(is_left=after.is_left) + gone + _encode(after)
    return (change.stored.revision, "1" if is_void else "", value)


def _new_revision(*, is_left: bool) -> bytes:
    """A random revision; its first byte is odd if runs receive `left`."""
    first, *rest = secrets.token_bytes(_REVISION_BYTES)
    return bytes([first & ~1 | is_left, *rest])


def _fields(read: _Read) -> tuple[str, int, str, str]:
    return (read.what, *read.version, "1" if read.was_left else "")
