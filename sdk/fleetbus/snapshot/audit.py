"""Compares audits with the snapshot (rule P15).

An audit is a list of the keys and versions that an API server holds, sent page by page. Each page
is complete for its range of keys, so it is compared when it arrives, and memory holds one page. A
difference is only suspect at first: the list may be ahead of events that are on their way. Suspects
are kept in the store until the low-water mark has passed the list and some time is over; then they
are evaluated again.
"""

from __future__ import annotations

from contextlib import aclosing
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import redis.exceptions

from fleetbus.snapshot.guard import Guard, read_guard
from fleetbus.snapshot.reads.walk import Range, scan_hash, walk_members
from fleetbus.snapshot.scripts import register
from fleetbus.snapshot.shards import refusal
from fleetbus.store.connection import is_full
from fleetbus_proto.keys import object_key
from fleetbus_proto.versions import is_comparable, is_newer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
    from datetime import timedelta

    from redis.asyncio import Redis

    from fleetbus_proto.events import AuditPage, Heartbeat
    from fleetbus_proto.keys import SnapshotKeys

_CHUNK: Final = 500
_SUSPECTS: Final = 10_000
_EXAMPLES: Final = 5


class PageResult(IntEnum):
    """The result of adding a page; the answers of audit.lua."""

    IGNORED = 0
    """Not compared: of another history, of a scope without a list, or too old."""
    OPEN = 1
    """The audit is incomplete, or has suspects."""
    CLEAN = 2
    """This page completed the audit without a suspect: the floor has risen."""


class FindingKind(StrEnum):
    """Difference of the snapshot from the API server."""

    MISSING = "missing"
    """The API server has an object that the snapshot does not hold."""
    GHOST = "ghost"
    """The snapshot holds an object that the API server no longer has."""
    STALE = "stale"
    """Both have an object of this name, with different versions or UIDs."""


class Audit(NamedTuple):
    """The identity of an audit: a scope of a resource, at a version of its API server."""

    cluster: str
    resource_key: str
    scope: str
    incarnation: int
    version: str
    id: int

    @classmethod
    def of(cls, page: AuditPage) -> Audit:
        """The audit that a page belongs to."""
        rank = page.epoch
        return cls(
            page.cluster,
            page.resource_key,
            page.scope,
            page.incarnation.number,
            rank.resource_version,
            rank.id,
        )


class Finding(NamedTuple):
    """One difference."""

    kind: FindingKind
    key: str
    """`<namespace>/<name>`."""
    listed: str
    """The version that the API server listed; empty for a ghost."""
    held: str
    """The version in the snapshot, of an object or a deletion; empty if it has neither."""

    @property
    def is_ahead(self) -> bool:
        """Whether the snapshot is newer than the server: no list of the same history can fix it."""
        return self.kind is FindingKind.STALE and not is_newer(self.listed, self.held)


class AuditDecision(NamedTuple):
    """The result of an audit: the number of findings of each kind, and some of them."""

    counts: Mapping[FindingKind, int]
    examples: Sequence[Finding]
    ahead: int
    """The number of findings that are `is_ahead`."""


class Audits:
    """The audits that are under way, of all clusters.

    Args:
        redis: a client as `connect` makes it.
        keys: the shards of the snapshot.
        most_suspects: of one audit; a single finding leads to a resync, so more need not be kept.
    """

    def __init__(self, redis: Redis, keys: SnapshotKeys, *, most_suspects: int = _SUSPECTS) -> None:
        self._most_suspects = most_suspects
        self._redis = redis
        self._keys = keys
        self._script = register(redis, "audit", when_full=True)
        self._due = register(redis, "audits_due")

    async def add_page(self, page: AuditPage) -> PageResult:
        """Compare a page and keep its suspects; may be repeated, in any order.

        Raises:
            StoreEmpty: the store was emptied; do not ack (P13).
            redis.exceptions.RedisError: the effect is unknown; repeat, do not ack (P9).
        """
        audit = Audit.of(page)
        if not is_comparable(audit.version):
            return PageResult.IGNORED
        suspects = await self._suspects(audit, page)
        counter = self._keys.counter(self._keys.shard_of(audit.cluster))
        if suspects and await is_full(self._redis, counter):
            return PageResult.IGNORED  # no room to keep suspects; the next audit may have it
        answer = PageResult.OPEN
        for at in range(0, max(len(suspects), 1), _CHUNK):
            is_rest = at + _CHUNK >= len(suspects)
            number = str(page.page) if is_rest else ""
            last = "1" if page.last else ""
            chunk = [text for suspect in suspects[at : at + _CHUNK] for text in suspect]
            answer = await self._run("page", audit, number, last, self._most_suspects, *chunk)
        return answer

    async def receive(self, heartbeat: Heartbeat) -> None:
        """Mark audits as passed whose list is below the low-water mark of this heartbeat."""
        cluster = heartbeat.cluster
        waiting = await cast("Any", self._redis.smembers(self._keys.audits(cluster)))
        for member in cast("set[bytes]", waiting):
            resource, _, scope = member.decode().partition("|")
            audit = await self._read(cluster, resource, scope)
            if audit is None:  # it has expired
                await cast("Any", self._redis.srem(self._keys.audits(cluster), member))
            elif _has_passed(audit, heartbeat):
                await self._run("pass", audit)

    async def due(self, after: timedelta) -> AsyncIterator[Audit]:
        """Yield audits whose list the low-water mark passed at least this long ago."""
        for shard in range(self._keys.shards):
            key = self._keys.audits_due(shard)
            try:
                due_members = await self._due(
                    keys=[key], args=[round(after.total_seconds() * 1000)]
                )
            except redis.exceptions.RedisError:
                if self._keys.shards == 1:
                    raise
                continue  # the other shards are not away
            for member in cast("list[bytes]", due_members):
                cluster, resource, scope = member.decode().split("|", 2)
                audit = await self._read(cluster, resource, scope)
                if audit is None:
                    await self._redis.zrem(key, member)
                else:
                    yield audit

    async def evaluate(self, audit: Audit) -> AuditDecision | None:
        """Compare the suspects again; None while that is not possible yet.

        That is while pages are missing, or deletions of the last epoch are not published. A newer
        epoch has compared everything itself: then there are no findings.
        """
        counts, examples, ahead = dict.fromkeys(FindingKind, 0), list[Finding](), 0
        state = await self._state(audit)
        if state is _Ready.NOT_YET:
            return None
        if state is _Ready.YES:
            async for finding in self._findings(audit):
                counts[finding.kind] += 1
                ahead += finding.is_ahead
                if len(examples) < _EXAMPLES:
                    examples.append(finding)
        return AuditDecision(counts, examples, ahead)

    async def end(self, audit: Audit, *, is_clean: bool) -> bool:
        """Remove an audit that was evaluated; a clean one raises the floor (rules P4, P15).

        Returns:
            False if another process has done so before.
        """
        answer = await self._run("end", audit, "1" if is_clean else "", self._most_suspects)
        return answer is not PageResult.IGNORED

    # --- comparing ------------------------------------------------------------------------------

    async def _suspects(self, audit: Audit, page: AuditPage) -> list[tuple[str | bytes, str]]:
        collected: list[tuple[str | bytes, str]] = []
        async with aclosing(self._compare(audit, page)) as suspects:
            async for suspect in suspects:
                collected.append(suspect)
                if len(collected) >= self._most_suspects:
                    break
        return collected

    async def _compare(
        self, audit: Audit, page: AuditPage
    ) -> AsyncGenerator[tuple[str | bytes, str]]:
        """Yield key, and version and UID as listed, of each difference."""
        listed = {
            object_key(namespace, name).encode(): (version, uid)
            for namespace, name, uid, version in page.items
        }
        async for key, guard in self._guards(audit, listed):
            version, uid = listed[key]
            if _listed_kind(audit, guard, version, uid) is not None:
                yield key, f"{version} {uid}"
        bounds = _range_of(page, max(listed, default=b""))
        order = self._keys.order(audit.cluster, audit.resource_key)
        async for members in walk_members(self._redis, order, bounds):
            absent = [member for member in members if member not in listed]
            async for key, guard in self._guards(audit, absent):
                if _is_ghost(audit, guard):
                    yield key, ""

    async def _findings(self, audit: Audit) -> AsyncIterator[Finding]:
        name = self._keys.audit(audit.cluster, audit.resource_key, audit.scope)
        async for raw in scan_hash(self._redis, name, chunk=_CHUNK, match="[?]*"):
            suspects = {field[1:]: value.decode() for field, value in raw.items()}
            async for key, guard in self._guards(audit, suspects):
                version, _, uid = suspects[key].partition(" ")
                kind = (
                    _listed_kind(audit, guard, version, uid)
                    if version
                    else (FindingKind.GHOST if _is_ghost(audit, guard) else None)
                )
                if kind is not None:
                    snapshot_version = guard.resource_version if guard is not None else ""
                    yield Finding(kind, key.decode(), version, snapshot_version)

    async def _guards(
        self, audit: Audit, suspects: Iterable[bytes]
    ) -> AsyncIterator[tuple[bytes, Guard | None]]:
        name = self._keys.guards(audit.cluster, audit.resource_key)
        members = list(suspects)
        for at in range(0, len(members), _CHUNK):
            chunk = members[at : at + _CHUNK]
            raw = await cast("Any", self._redis.hmget(name, cast("Any", chunk)))
            for key, value in zip(chunk, cast("list[bytes | None]", raw), strict=True):
                yield key, read_guard(value) if value is not None else None

    # --- the store ------------------------------------------------------------------------------

    async def _read(self, cluster: str, resource: str, scope: str) -> Audit | None:
        name = self._keys.audit(cluster, resource, scope)
        raw = await cast("Any", self._redis.hmget(name, ["incarnation", "version", "id"]))
        incarnation, version, audit_id = cast("list[bytes | None]", raw)
        if incarnation is None or version is None or audit_id is None:
            return None
        return Audit(cluster, resource, scope, int(incarnation), version.decode(), int(audit_id))

    async def _state(self, audit: Audit) -> _Ready:
        place = (audit.cluster, audit.resource_key, audit.scope)
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hmget(self._keys.audit(*place), ["pages", "last"])
            pipe.hmget(self._keys.epochs(*place), ["incarnation", "floor", "completed", "swept"])
            (pages, last), (incarnation, floor, completed, swept) = cast(
                "list[list[bytes | None]]", await pipe.execute()
            )
        is_same = incarnation is not None and int(incarnation) == audit.incarnation
        if not is_same or is_newer((floor or b"").decode(), audit.version):
            return _Ready.SUPERSEDED
        is_whole = pages is not None and last is not None and int(pages) == int(last) + 1
        return _Ready.YES if is_whole and completed == swept else _Ready.NOT_YET

    async def _run(self, action: str, audit: Audit, *arguments: str | bytes | int) -> PageResult:
        place = (audit.cluster, audit.resource_key, audit.scope)
        shard = self._keys.shard_of(audit.cluster)
        names = [
            self._keys.generation(shard),
            self._keys.clusters(shard),
            self._keys.epochs(*place),
            self._keys.audit(*place),
            self._keys.audits(audit.cluster),
            self._keys.audits_due(shard),
        ]
        try:
            answer = await self._script(keys=names, args=[action, *audit, *arguments])
        except redis.exceptions.ResponseError as e:
            if refused := refusal(e, self._keys):
                raise refused from e
            raise
        return PageResult(int(answer))


class _Ready(StrEnum):
    YES = "yes"
    NOT_YET = "not yet"
    SUPERSEDED = "superseded"


def _has_passed(audit: Audit, heartbeat: Heartbeat) -> bool:
    """Whether the low-water mark has passed the list; during a list it is that list's own."""
    return heartbeat.incarnation.number == audit.incarnation and any(
        status.resource_key == audit.resource_key
        and status.scope == audit.scope
        and status.state == "watching"
        and is_comparable(status.resource_version)
        and not is_newer(audit.version, status.resource_version)
        for status in heartbeat.resources
    )


def _range_of(page: AuditPage, last: bytes) -> Range:
    """The range of keys for which the page is complete."""
    low = b"(" + object_key(*page.after).encode() if page.after is not None else b"-"
    return Range(low, b"+" if page.last else b"[" + last)


def _listed_kind(audit: Audit, guard: Guard | None, version: str, uid: str) -> FindingKind | None:
    """Return how a listed key of this version differs from its guard."""
    if guard is None:
        return FindingKind.MISSING
    incarnation = int(guard.incarnation)
    if incarnation != audit.incarnation:
        older = FindingKind.STALE if guard.is_live else FindingKind.MISSING
        return older if incarnation < audit.incarnation else None
    if is_newer(guard.resource_version, audit.version):
        return None  # it has changed since
    if not guard.is_live:
        return FindingKind.MISSING
    is_other = bool(uid and guard.uid) and uid != guard.uid
    return FindingKind.STALE if guard.resource_version != version or is_other else None


def _is_ghost(audit: Audit, guard: Guard | None) -> bool:
    """Whether a live key is missing in the list without a reason; as in a sweep (rule P6)."""
    if guard is None or not guard.is_live or guard.mark(audit.scope) is None:
        return False
    incarnation = int(guard.incarnation)
    if incarnation != audit.incarnation:
        return incarnation < audit.incarnation
    return is_newer(audit.version, guard.resource_version)
