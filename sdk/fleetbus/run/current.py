"""One run of a reconcile function: what it has read and written, and the note of the last run.

The worker sets the run around the user's function, in a context variable, so that tasks and
threads that the function starts belong to it too. The methods of `Cluster` fill it; nothing is
recorded outside of a run (in mapping functions, in services that use a `Fleet` themselves).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import structlog

from fleetbus.errors import LeaseLostError
from fleetbus.reconcile import Request
from fleetbus.run.user_code import calling_user_code, mark_user_code
from fleetbus_proto.versions import is_comparable, version_key

log = structlog.get_logger()

NOTE_BYTES: Final = 16 * 1024
"""The most that the queue stores for the next run of a request."""
REMEMBERED: Final = timedelta(minutes=1)
"""After this time a write that no run has looked for is on the bus, or never will be."""

Version: TypeAlias = tuple[int, str]
"""Incarnation number and resourceVersion."""


class ObjectRef(NamedTuple):
    """The address of an object in the fleet."""

    cluster: str
    resource: str
    """The resource key, `core/pods`."""
    namespace: str
    name: str


class Written(NamedTuple):
    """The result of a write (rule R5)."""

    resource_version: str
    """Empty for an object that is gone at once."""
    uid: str
    is_deleted: bool
    at: float
    """In seconds of the writer's clock."""


class Call(NamedTuple):
    """One call of an asynchronous method that a run has made."""

    work: Coroutine[Any, Any, Any]
    name: str
    file: str
    line: int

    @property
    def has_begun(self) -> bool:
        """Whether it was ever awaited."""
        return inspect.getcoroutinestate(self.work) != inspect.CORO_CREATED


class _Note(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The note that one run leaves for the next one of its request."""

    writes: list[tuple[ObjectRef, Written]]
    applied: list[tuple[bytes, str]]


_decoder = msgspec.msgpack.Decoder(_Note)


@dataclass(slots=True)
class Run:
    """One run, as the SDK sees it.

    Attributes:
        request: what it is for.
        trigger: the newest version of the request's own object that caused it (rule P10); None
            for a mapped trigger, a timer or a full enqueue.
        own: the resource key of `trigger`; empty when the controller's watches name several
            resources, whose versions cannot be compared.
        reads: the version of each object at its first read from the snapshot: no decision of the
            run is based on an older one. Of an absent object it is the deletion's, or the floor
            below which the snapshot has every deletion (rule P4); absent if neither is known.
        absent: those of `reads` that the snapshot did not have.
        writes: what this run or an earlier one wrote, until a read of the snapshot shows it.
        used: clusters and resource keys whose objects were read or written live.
        applied: the patches that were sent, by hash, with the resourceVersion they produced (R10).
    """

    request: Request
    trigger: Version | None = None
    own: str = ""
    offered: bytes = b""
    """The request's own object at `trigger`, if this process has it: for the first read of it."""
    holds: Callable[[], bool] = lambda: True
    """Whether the lease is certainly ours; asked before each write (rule R4)."""
    trace_write: Callable[[str, str, str], AbstractContextManager[None]] = (
        lambda _cluster, _method, _path: nullcontext()
    )
    """Entered around each write, with its cluster, method and path."""
    has_written: bool = False
    """Whether this run has written anything."""
    was_refused: bool = False
    """Whether a write was refused because of the lease: then the run has failed."""
    error: BaseException | None = None
    """The error that the function raised."""
    reads: dict[ObjectRef, Version] = field(default_factory=dict[ObjectRef, Version])
    absent: set[ObjectRef] = field(default_factory=set[ObjectRef])
    writes: dict[ObjectRef, Written] = field(default_factory=dict[ObjectRef, Written])
    applied: dict[bytes, str] = field(default_factory=dict[bytes, str])
    used: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    calls: list[Call] = field(default_factory=list[Call])
    """Calls that may not be awaited yet."""
    earlier: dict[bytes, str] = field(default_factory=dict[bytes, str])
    """Patches of earlier runs; one that this run applies again moves to `applied`."""

    @property
    def own_ref(self) -> ObjectRef:
        """The request's own object, of the resource `own`."""
        request = self.request
        return ObjectRef(request.cluster, self.own, request.namespace, request.name)

    def take_offered(self, ref: ObjectRef) -> bytes:
        """Return the request's own object, once; later reads ask the snapshot."""
        if not self.offered or ref != self.own_ref:
            return b""
        offered, self.offered = self.offered, b""
        return offered

    def note_read(self, ref: ObjectRef, version: Version, *, is_absent: bool = False) -> None:
        """Record the version that the snapshot showed; the first read counts."""
        if ref not in self.reads:
            self.reads[ref] = version
            if is_absent:
                self.absent.add(ref)

    def note_write(
        self, ref: ObjectRef, resource_version: str, uid: str, *, is_deleted: bool = False
    ) -> None:
        """Record the result of a write; the next reads of this object wait for it."""
        self.has_written = True
        self.writes[ref] = Written(resource_version, uid, is_deleted, time.time())

    def is_behind(self, ref: ObjectRef, version: Version | None) -> bool:
        """Whether the snapshot's version of the request's own object is older than the trigger."""
        if self.trigger is None or not self.own or ref != self.own_ref or version is None:
            return False
        if not (is_comparable(version[1]) and is_comparable(self.trigger[1])):
            return False  # versions of aggregated APIs may be any string
        return _version_key(version) < _version_key(self.trigger)

    def require_lease(self) -> None:
        """Refuse to go on once another worker may have the request (rule R4).

        Raises:
            LeaseLostError: the lease is lost, or cannot be confirmed any more.
        """
        if not self.holds():
            self.was_refused = True
            raise LeaseLostError(f"the lease of {self.request} is lost; nothing was sent")

    def recall(self, note: bytes) -> None:
        """Load the note of the last run; a malformed one is ignored."""
        if not note:
            return
        try:
            last_note = _decoder.decode(note)
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            log.warning("note_unreadable", error=str(e))
            return
        oldest = time.time() - REMEMBERED.total_seconds()
        self.writes.update(
            (ref, written) for ref, written in last_note.writes if written.at > oldest
        )
        self.earlier.update(last_note.applied)

    def note(self) -> bytes:
        """The note for the next run; may be empty.

        If it is too large, the hashes are dropped first (they only save requests), then the oldest
        writes.
        """
        if not self.writes and not self.applied:
            return b""
        writes = sorted(self.writes.items(), key=lambda item: item[1].at, reverse=True)
        note = _encode(writes, list(self.applied.items()))
        if len(note) <= NOTE_BYTES:
            return note
        while len(note) > NOTE_BYTES:
            keep = min(len(writes) - 1, len(writes) * NOTE_BYTES // len(note))
            writes = writes[: max(keep, 0)]
            note = _encode(writes, [])
        log.warning("writes_not_remembered", written=len(self.writes), remembered=len(writes))
        return note


_current: ContextVar[Run | None] = ContextVar("fleetbus_run", default=None)


def current_run() -> Run | None:
    """The run that the caller belongs to; None outside of a reconcile function."""
    return _current.get()


def require_lease(method: str) -> None:
    """Refuse a request of this HTTP method, unless it reads, once the run's lease is lost (R4).

    Raises:
        LeaseLostError: as `Run.require_lease`.
    """
    if method != "GET" and (run := _current.get()):
        run.require_lease()


def begin(run: Run) -> None:
    """Make this the current run of the running task to its end, and of everything it starts."""
    _current.set(run)
    mark_user_code()


@contextmanager
def running(run: Run) -> Generator[Run]:
    """Make this the current run, for the block and everything it starts."""
    token = _current.set(run)
    try:
        with calling_user_code():
            yield run
    finally:
        _current.reset(token)


def _encode(writes: list[tuple[ObjectRef, Written]], applied: list[tuple[bytes, str]]) -> bytes:
    return msgspec.msgpack.encode(_Note(writes, applied))


def _version_key(version: Version) -> tuple[int, tuple[int, str]]:
    return (version[0], version_key(version[1]))
