"""The Lua scripts as typed calls: every transition of the queue is one of them (rule Q2).

A `Call` is a script with its arguments, so that the asynchronous queue and the heartbeat's thread,
which has a blocking connection, send the same bytes. Each Lua file names its keys and arguments.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from redis.exceptions import NoScriptError, RedisError

from fleetbus.process.cancellation import cancellable
from fleetbus.reconcile import Request
from fleetbus.workqueue.errors import QueueUnavailableError
from fleetbus.workqueue.queue import check_trace
from fleetbus_proto import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import redis
    import redis.asyncio

    from fleetbus.workqueue.queue import Add, Backoff, Lease, QueuePolicy

PARTS: Final = (
    *("ready", "turns:0", "turns:1", "turns:2", "credits"),
    *("dirty", "delayed", "triggers", "processing", "leases", "takes", "attempts"),
    *("suspects", "reclaims", "quarantine", "liveness", "notify", "traces", "notes", "noted"),
    *("breakers", "outages", "clock", "causes"),
)
# A full store refuses only these, as back-pressure (rule P9): work must be able to end.
_GROWING: Final = frozenset({"add", "add_after"})
_SHARED: Final = {
    "take": ("taking",),
    "add": ("taking", "record_read", "last_runs", "ending", "record_save"),
    "done": ("taking", "record_read", "last_runs", "ending"),
}
"""The files of `lua/shared` that precede a script, beside `state`."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+")
# Answers hold opaque bytes, whatever `decode_responses` of the client says.
_AS_BYTES: Final[dict[str, Any]] = {"NEVER_DECODE": True}


@dataclass(frozen=True, slots=True)
class Script:
    """The text of one script, and the digest by which the server knows it."""

    text: str
    digest: str


@cache
def load(name: str) -> Script:
    """Load a script of this package, preceded by what it shares with others."""
    folder = resources.files("fleetbus.workqueue").joinpath("lua")
    first = "#!lua" if name in _GROWING else "#!lua flags=allow-oom"
    shared = (f"shared/{file}" for file in ("state", *_SHARED.get(name, ())))
    text = "\n".join([first, *((folder / f"{file}.lua").read_text() for file in (*shared, name))])
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_UNLIMITED: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one take for clusters and probes: see `Queue.take`."""

    capacity: Mapping[str, int]
    default_capacity: int
    probes: int

    @classmethod
    def of(
        cls, capacity: Mapping[str, int] | None, default: int | None, probes: int | None
    ) -> Limits:
        """Check and complete the arguments of `Queue.take`."""
        if default is not None and default < 1:
            raise ValueError(f"default_capacity must be positive, not {default}")
        most = _UNLIMITED
        return cls(
            capacity or {},
            most if default is None else default,
            most if probes is None else probes,
        )


NO_LIMITS: Final = Limits.of(None, None, None)


class Rows(NamedTuple):
    """More rows for a script to store: keys in the queue's hash tag, and values; see its file."""

    keys: Sequence[str] = ()
    values: Sequence[str | bytes | int] = ()


NO_ROWS: Final = Rows()


class Ending(NamedTuple):
    """Leases that end, at most `BATCH`, and the rows to store of their runs."""

    leases: Sequence[Lease] = ()
    notes: Mapping[Request, bytes] = MappingProxyType({})
    """For the next runs; they replace the last ones."""
    reads: Rows = NO_ROWS
    """The versions that the runs have read, see `record_read.lua`."""
    runs: Rows = NO_ROWS
    """Results of the runs, see `last_runs.lua`; with reads it has to be given."""
    read: Mapping[Request, bytes] = MappingProxyType({})
    """The versions of their own objects that the runs have read, encoded as triggers: none that is
    older wakes them again (rule P10)."""

    @property
    def keys(self) -> Sequence[str]:
        """The keys of the rows."""
        return (*self.runs.keys, *self.reads.keys)


NO_ENDING: Final = Ending()


@dataclass(frozen=True, slots=True)
class Call:
    """One transition, ready to be sent."""

    script: Script
    tail: tuple[Any, ...]

    async def send(self, redis: redis.asyncio.Redis) -> Any:
        """Run it; a server that does not know the script gets its text (rule P16).

        Raises:
            QueueUnavailableError: the store did not answer, or refused.
        """
        client: Any = redis
        run = client.execute_command
        try:
            with cancellable():  # redis-py sends under asyncio.wait_for
                try:
                    return await run("EVALSHA", self.script.digest, *self.tail, **_AS_BYTES)
                except NoScriptError:
                    return await run("EVAL", self.script.text, *self.tail, **_AS_BYTES)
        except (RedisError, OSError) as e:
            raise QueueUnavailableError(str(e)) from e

    def send_blocking(self, redis: redis.Redis) -> Any:
        """Run it on a blocking connection, from a thread."""
        run = cast("Callable[..., Any]", redis.execute_command)
        try:
            return run("EVALSHA", self.script.digest, *self.tail, **_AS_BYTES)
        except NoScriptError:
            return run("EVAL", self.script.text, *self.tail, **_AS_BYTES)


class Transitions:
    """Builds the calls of one controller's queue."""

    def __init__(self, controller: str, policy: QueuePolicy) -> None:
        self._controller = controller
        self._policy = policy
        self._keys = tuple(keys.queue(controller, part) for part in PARTS)
        self._head = (len(PARTS), *self._keys)
        self.weigh({})

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Set the weights of clusters: see `Queue.weigh`."""
        steps = "".join(f" {cluster}={1 / weight!r}" for cluster, weight in weights.items())
        self._numbers = f"{micros(self._policy.lease)}{steps}"

    def add(
        self,
        items: Sequence[Add],
        taking: Sequence[str | int] = (),
        *,
        records: Rows = NO_ROWS,
        objects: Sequence[int] = (),
        ending: Ending = NO_ENDING,
    ) -> Call:
        """Add: mark dirty.

        Args:
            items: at most `BATCH`.
            taking: arguments of a take that follows.
            records: what is stored of the objects that caused the items.
            objects: for each item the object whose record it depends on, counted from 1, or 0.
            ending: leases that end before.
        """
        fields: list[str | bytes | int] = [len(items), len(records.values)]
        for at, add in enumerate(items):
            fields += (*self._add_fields(add), objects[at] if objects else 0)
        fields += (*records.values, *self._ending_fields(ending), *taking)
        return self._call("add", *fields, keys=(*ending.keys, *records.keys))

    def add_after(self, request: Request, delay: timedelta) -> Call:
        """Add after a delay."""
        return self._call("add_after", self.item(request), micros(delay))

    def take(
        self, token: str, limit: int, limits: Limits = NO_LIMITS, *, is_repeated: bool = False
    ) -> Call:
        """Take: from ready to processing."""
        return self._call("take", *self.taking(token, limit, limits, is_repeated=is_repeated))

    def taking(
        self, token: str, limit: int, limits: Limits, *, is_repeated: bool = False
    ) -> list[str | int]:
        """The arguments of a take, also for calls that take besides.

        Args:
            token: gets the same items again.
            limit: most items.
            limits: those of clusters.
            is_repeated: whether the token may have been sent before.
        """
        if not _TOKEN.fullmatch(token):  # it becomes part of the fence, which the scripts parse
            raise ValueError(f"invalid request token: {token!r}")
        fixed = (token, limit, limits.default_capacity, limits.probes, int(is_repeated))
        arguments: list[str | int] = [*fixed]
        for pair in limits.capacity.items():
            arguments += pair
        return arguments

    def done(self, ending: Ending, taking: Sequence[str | int] = ()) -> Call:
        """End leases; a request that is dirty again becomes ready.

        Args:
            ending: which, and what is stored of their runs.
            taking: arguments of a take that follows.
        """
        return self._call("done", *self._ending_fields(ending), *taking, keys=ending.keys)

    def give_back(self, leases: Iterable[Lease]) -> Call:
        """Give back: from processing to ready."""
        return self._call("give_back", *self._fences(leases))

    def extend(self, leases: Iterable[Lease]) -> Call:
        """Extend leases: each lasts a whole lease from now on."""
        return self._call("extend", *self._fences(leases))

    def retry(self, lease: Lease, *, unreachable: bool) -> Call:
        """Count a failure and delay; may open the breaker of the cluster."""
        policy = self._policy
        return self._call(
            "retry",
            *self._fences([lease]),
            *_backoff(policy.backoff),
            int(unreachable),
            policy.breaker,
            *_backoff(policy.breaker_pause),
            jitter(),
        )

    def forget(self, lease: Lease, delay: timedelta | None = None) -> Call:
        """Forget the failures; with a delay, add again after it."""
        pause = -1 if delay is None else micros(delay)
        return self._call("forget", *self._fences([lease]), pause)

    def reap(self) -> Call:
        """Mark expired leases as suspect, and recover those marked before."""
        policy = self._policy
        return self._call(
            "reap",
            micros(policy.grace),
            micros(policy.reclaim_window),
            policy.reclaims,
            *_backoff(policy.quarantine),
            micros(policy.note_age),
        )

    def release(self, request: Request) -> Call:
        """Release a request from quarantine."""
        return self._call("release", self.item(request))

    def read_item(self, request: Request) -> Call:
        """Read the status of one item."""
        return self._call("read_item", self.item(request))

    def run_now(self, request: Request | None, page: str) -> Call:
        """Make due now: one item, or a page of all that wait after a failure."""
        return self._call("run_now", "" if request is None else self.item(request), page)

    def list_items(self, limit: int) -> Call:
        """List items by state."""
        return self._call("list_items", limit)

    def stats(self) -> Call:
        """Count items."""
        return self._call("stats")

    def list_held(self, limit: int) -> Call:
        """List what must not be ready: items that are processing or in quarantine."""
        return self._call("list_held", limit)

    def item(self, request: Request) -> str:
        """Encode a request; its cluster ends at the first slash."""
        if request.controller != self._controller:
            raise ValueError(f"{request} belongs to {request.controller}, not {self._controller}")
        return f"{request.cluster}/{request.namespace}/{request.name}"

    def request(self, item: bytes) -> Request:
        """Decode an item."""
        cluster, namespace, name = item.decode().split("/", 2)
        return Request(self._controller, cluster, namespace, name)

    def _add_fields(self, add: Add) -> tuple[str, int, bytes, str, str]:
        trace = add.trace and check_trace(add.trace)
        return self.item(add.request), int(add.priority), add.trigger, trace, add.foreign_cause

    def _ending_fields(self, ending: Ending) -> list[str | bytes | int]:
        leases, notes, reads, runs, read = ending
        counts = (len(leases), len(reads.values), len(runs.values), len(ending.keys))
        fields: list[str | bytes | int] = [*counts]
        for lease in leases:
            request = lease.request
            fields += (self.item(request), lease.fence)
            fields += (notes.get(request, b""), read.get(request, b""))
        return [*fields, *reads.values, *runs.values]

    def _fences(self, leases: Iterable[Lease]) -> Iterable[str]:
        for lease in leases:
            yield self.item(lease.request)
            yield lease.fence

    def _call(self, name: str, *arguments: str | bytes | float, keys: Sequence[str] = ()) -> Call:
        head = (len(PARTS) + len(keys), *self._keys, *keys) if keys else self._head
        return Call(load(name), (*head, self._numbers, *arguments))


def jitter() -> float:
    """A random factor for the pauses of breakers: what failed together is not tried together."""
    return random.uniform(0.75, 1)  # noqa: S311 -- nothing secret


def micros(span: timedelta) -> int:
    """Convert to whole microseconds, the unit of every script."""
    return span // timedelta(microseconds=1)


def _backoff(backoff: Backoff) -> tuple[int, float, int]:
    return micros(backoff.first), backoff.factor, micros(backoff.limit)
