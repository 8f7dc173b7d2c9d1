"""Drafts the desired objects of every cluster: placement and rendering (rule D15).

Rendering 500 templates for 100 clusters takes seconds of Python: it runs in a thread, and results
are cached by what they depend on: the spec, and name and labels of the cluster. The thread of a
round that is cancelled ends with the cluster that it is at, whose work is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

import orjson

from fleetbus.clusters.info import ClusterInfo
from fleetbus_distributor.errors import CustomizeError, RenderError
from fleetbus_distributor.render.customize import render_for
from fleetbus_distributor.render.place import Member, Placed, place
from fleetbus_distributor.render.spec import Spec
from fleetbus_distributor.render.template import Context, Object, ObjectRef, reference, similar
from fleetbus_distributor.render.work import MAX_FLEET_WORK, Work

_CACHE_SIZE: Final = 64 * 1024 * 1024
"""Bytes of rendered objects, as JSON, and of what keeps them."""
_ENTRY_SIZE: Final = 1024
"""Bytes that an entry of the cache takes beside its objects: facts, hashes, warnings, a problem."""
_KEPT: Final = timedelta(minutes=30)
"""Unused for so long, it is of an earlier spec: every ten minutes all is compared."""
_NOT_RENDERED: Final = {"placement", "policy", "rollout", "health", "feedback"}
_Facts: TypeAlias = tuple[bytes, str, bytes]
"""Digest of the spec, name of the cluster, digest of its labels."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a cluster cannot be rendered."""

    reason: str
    message: str


_TOO_MUCH_WORK: Final = Problem(
    "RenderFailed",
    f"the objects rendered for all clusters are larger than {MAX_FLEET_WORK} bytes; split them into"
    " several MultiClusterResources",
)


@dataclass(slots=True)
class Draft:
    """The desired objects of a MultiClusterResource, per cluster."""

    placed: Placed
    clusters: Sequence[ClusterInfo] = ()
    """The fleet that it was made from. What is compared with it must be as old: a cluster that
    joins, or is relabelled, meanwhile would look like one that the spec no longer names."""
    objects: dict[str, list[Object]] = field(default_factory=dict[str, list[Object]])
    wanted: dict[str, list[ObjectRef]] = field(default_factory=dict[str, list[ObjectRef]])
    """References to the objects."""
    revisions: dict[str, str] = field(default_factory=dict[str, str])
    """Hashes of the objects."""
    problems: dict[str, Problem] = field(default_factory=dict[str, Problem])
    waiting: frozenset[str] = frozenset()
    """Placed clusters that were not rendered, because their wave is not open."""
    warnings: list[str] = field(default_factory=list[str])
    unused: list[str] = field(default_factory=list[str])
    """Rules of spec.health and spec.feedback that select no object on any cluster."""
    absent: list[str] = field(default_factory=list[str])
    """Entries of spec.customize for clusters that are not in the fleet."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    body: bytes
    revision: str
    warnings: Sequence[str]
    work: int
    problem: Problem | None = None
    """Why it cannot be rendered: kept as well, because the refused work is the largest."""


class Renderer:
    """Places and renders, off the event loop.

    Args:
        cache_size: bytes of rendered objects to keep; the least recently used go first.
        kept: time after which what nobody used goes.
    """

    def __init__(self, cache_size: int = _CACHE_SIZE, kept: timedelta = _KEPT) -> None:
        self._max_size = cache_size
        self._kept = kept.total_seconds()
        self._size = 0
        self._cache: OrderedDict[_Facts, tuple[_Rendered, float]] = OrderedDict()
        """Renderings, each with the time of its last use; the least recently used first."""
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of cached objects."""
        return self._size

    async def draft(
        self,
        spec: Spec,
        clusters: Sequence[ClusterInfo],
        hub: str,
        behind: Mapping[str, Spec | None] | None = None,
    ) -> Draft:
        """Place and render; a cluster that cannot be rendered does not affect the others.

        Args:
            spec: the spec.
            clusters: the fleet.
            hub: the name of the hub.
            behind: clusters that are rendered from an earlier revision, or, with None, not at all.
        """
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._draft, spec, clusters, hub, behind or {}, stop)
        finally:
            # Of a cancelled round: else its thread would be taken from the rounds of all others.
            stop.set()

    def _draft(
        self,
        spec: Spec,
        clusters: Sequence[ClusterInfo],
        hub: str,
        behind: Mapping[str, Spec | None],
        stop: threading.Event,
    ) -> Draft:
        members = [Member(info.name, info.labels) for info in clusters]
        result = Draft(place(spec.placement, members, hub), clusters)
        digests: dict[int, bytes] = {}
        waiting: list[str] = []
        work = 0
        for member in result.placed.targets:
            revision = behind.get(member.name, spec)
            if revision is None:
                waiting.append(member.name)
                continue
            if stop.is_set():
                break
            if id(revision) not in digests:
                digests[id(revision)] = _digest_of(revision)
            if work > MAX_FLEET_WORK:
                result.problems[member.name] = _TOO_MUCH_WORK
                continue
            rendered = self._render(digests[id(revision)], revision, member)
            work += rendered.work
            _add(result, member.name, rendered)
        result.waiting = frozenset(waiting)
        result.unused = list(_unused_rules(spec, result))
        result.absent = list(_absent_clusters(spec, members))
        return result

    def _render(self, digest: bytes, spec: Spec, member: Member) -> _Rendered:
        labels = orjson.dumps(member.labels, option=orjson.OPT_SORT_KEYS)
        facts = (digest, member.name, hashlib.sha256(labels).digest())
        with self._lock:
            if stored := self._cache.pop(facts, None):
                self._cache[facts] = stored[0], time.monotonic()
                return stored[0]
        rendered = _render(spec, Context(member.name, member.labels, spec.vars))
        with self._lock:
            self._store(facts, rendered)
        return rendered

    def _store(self, facts: _Facts, rendered: _Rendered) -> None:
        now = time.monotonic()
        if facts not in self._cache:
            self._cache[facts] = rendered, now
            self._size += _size_of(rendered)
        while self._cache:
            oldest, used = next(iter(self._cache.values()))
            if self._size <= self._max_size and used >= now - self._kept:
                break
            self._cache.popitem(last=False)
            self._size -= _size_of(oldest)


def _size_of(rendered: _Rendered) -> int:
    return len(rendered.body) + _ENTRY_SIZE


def _render(spec: Spec, context: Context) -> _Rendered:
    work = Work()
    try:
        objects, warnings = render_for(spec, context, work)
        body = _to_json(objects)
    except RenderError as error:
        return _Rendered(b"", "", (), work.spent, Problem("RenderFailed", str(error)))
    except CustomizeError as error:
        return _Rendered(b"", "", (), work.spent, Problem("PatchFailed", str(error)))
    return _Rendered(body, _revision_of(objects), warnings, work.spent)


def _add(draft: Draft, cluster: str, rendered: _Rendered) -> None:
    if rendered.problem is not None:
        draft.problems[cluster] = rendered.problem
        return
    objects: list[Object] = orjson.loads(rendered.body)
    draft.objects[cluster] = objects
    draft.wanted[cluster] = [reference(obj) for obj in objects]
    draft.revisions[cluster] = rendered.revision
    draft.warnings += rendered.warnings


def _unused_rules(spec: Spec, draft: Draft) -> Iterator[str]:
    """Rules that are most likely typos: an object that they miss is evaluated without them."""
    references = {ref for refs in draft.wanted.values() for ref in refs}
    if not references or draft.problems:
        return
    for field_name, rules in (("health", spec.health), ("feedback", spec.feedback)):
        for number, rule in enumerate(rules):
            if not any(
                rule.selects(ref.api_version, ref.kind, ref.namespace, ref.name)
                for ref in references
            ):
                yield f"spec.{field_name}[{number}]: no template is {rule}"


def _absent_clusters(spec: Spec, members: Sequence[Member]) -> Iterator[str]:
    """Changes for absent clusters: most likely typos, but the clusters may join later."""
    names = {member.name for member in members}
    for number, entry in enumerate(spec.customize.clusters):
        if entry.name is not None and entry.name not in names:
            near = similar(entry.name, sorted(names))
            where = f"spec.customize.clusters[{number}].name"
            yield f"{where}: no cluster of the fleet is {entry.name!r}{near}"


def _digest_of(spec: Spec) -> bytes:
    """Hash what is rendered: not where it goes, nor how fast."""
    body = spec.model_dump_json(by_alias=True, exclude=_NOT_RENDERED)
    return hashlib.sha256(body.encode()).digest()


def _to_json(objects: list[Object]) -> bytes:
    try:
        # Copied: orjson's bytes keep a buffer of 4 KiB, however few they are.
        return bytes(memoryview(orjson.dumps(objects)))
    except orjson.JSONEncodeError as error:
        raise RenderError(f"the rendered objects cannot be encoded as JSON: {error}") from error


def _revision_of(objects: list[Object]) -> str:
    """Hash what was rendered for a cluster."""
    body = orjson.dumps(objects, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(body).hexdigest()[:16]
