"""Reads objects of the snapshot for an answer: pages, one object, how far they can be relied on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from fleetbus.kube.selectors import FieldRequirement, FieldSelector, LabelSelector
from fleetbus.snapshot import (
    Entry,
    Freshness,
    ListQuery,
    Page,
    ResourceState,
    SnapshotReader,
)
from fleetbus.snapshot.reads.paging import Position, write_token
from fleetbus_proto import keys
from fleetbus_query_api.answers.catalog import Catalog, Fleet, KnownResource
from fleetbus_query_api.answers.errors import NotFound
from fleetbus_query_api.answers.parameters import ListParameters, require_few
from fleetbus_query_api.answers.render import (
    body_of,
    render_freshness,
    render_item,
    render_list,
    render_one,
)
from fleetbus_query_api.answers.store import read_generation
from fleetbus_query_api.limits.time_slices import TimeSlices

MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
"""Bodies per page (rule A8); a single object may be larger, but is never sent with another."""

_SCAN_STEP: Final = 250
_SCAN_AT_MOST: Final = 20_000
"""Objects that one question looks into; the next page goes on from there (rule A8)."""

_STRANGER: Final = Freshness(
    ResourceState.UNKNOWN, None, is_complete=False, reason="not in the fleet"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """One page, and how many objects per cluster had no body to look into."""

    page: Page
    unjudged: Mapping[str, int]


class Listing:
    """Answers questions for objects, as JSON.

    Args:
        reader: the snapshot.
        catalog: what can be asked for.
        slices: in which objects are looked into.
    """

    def __init__(self, *, reader: SnapshotReader, catalog: Catalog, slices: TimeSlices) -> None:
        self._reader = reader
        self._catalog = catalog
        self._slices = slices

    async def list(self, resource: str, asked: ListParameters) -> bytes:
        """One page of a resource, over clusters.

        Raises:
            BadRequest: a selector has too many requirements.
            InvalidName: the text names no resource.
            InvalidSelector: a selector cannot be read.
            InvalidToken: the continue token is garbage.
            ExpiredToken: the continue token is of a lost store.
            NotFound: no cluster has this resource.
        """
        fields = FieldSelector.parse(asked.field_selector)
        labels = LabelSelector.parse(asked.label_selector)
        require_few("fieldSelector", len(fields.requirements))
        require_few("labelSelector", len(labels.requirements))
        fleet = await self._catalog.fleet()
        known = fleet.resource(resource)
        clusters = sorted(set(asked.cluster)) or list(fleet.clusters)
        # Freshness first: rows read after it are at least as fresh as it says (rule A4).
        freshness = await self.freshness(fleet, clusters, known, asked.namespace)
        query = ListQuery(
            clusters=[name for name in clusters if name in fleet.clusters],
            resource=known.key,
            namespace=asked.namespace or None,
            name=asked.name or None,
            labels=labels or None,
            limit=asked.limit,
            continue_token=asked.continue_token,
        )
        query, rest = _push_down(query, fields)
        found = await self._scan(query, rest) if rest else _Found(await self._page(query), {})
        return render_list(
            map(render_item, found.page.entries),
            {
                "continue": found.page.continue_token,
                "remaining": found.page.remaining,
                "resourceVersion": str(found.page.counter),
                "resource": describe_resource(known),
                **render_freshness(_with_unjudged(freshness, found.unjudged)),
            },
        )

    async def get(self, cluster: str, resource: str, namespace: str, name: str) -> bytes:
        """One object.

        Raises:
            InvalidName: the text names no resource.
            NotFound: no such resource, cluster or object; the problem says how sure that is.
        """
        fleet = await self._catalog.fleet()
        known = fleet.resource(resource)
        freshness = render_freshness(await self.freshness(fleet, [cluster], known, namespace))
        entry = None
        if cluster in fleet.clusters:
            entry = await self._reader.get(cluster, known.key, namespace, name)
        if entry is None:
            # One answer for an absent cluster, namespace and name (rule A2).
            raise NotFound("the snapshot holds no such object", **freshness)
        return render_one(render_item(entry), {"resource": describe_resource(known), **freshness})

    async def freshness(
        self, fleet: Fleet, clusters: Sequence[str], known: KnownResource, namespace: str = ""
    ) -> dict[str, Freshness]:
        """How far each cluster's answer for a resource can be relied on (rule A4)."""
        members = [name for name in clusters if name in fleet.clusters]
        found = await self._reader.freshness(members, known.key, namespace=namespace)
        for name in members:
            if fleet.is_left_out(name, known.key):
                found[name] = replace(found[name], reason="not watched there")
        return {name: found.get(name, _STRANGER) for name in clusters}

    async def _page(self, query: ListQuery) -> Page:
        """A page within `MAX_PAGE_BYTES`: one that is larger is read again with fewer objects."""
        page = await self._reader.list(query)
        while (fitting := _count_fitting(page.entries)) < len(page.entries):
            page = await self._reader.list(replace(query, limit=fitting))
        return page

    async def _scan(self, query: ListQuery, fields: FieldSelector) -> _Found:
        """Look into objects until the page is full; what remains is not counted."""
        generation = await read_generation(self._reader)
        step = replace(query, limit=_SCAN_STEP, count=False)
        kept = _Kept(fields, query.limit or _SCAN_AT_MOST)
        page = await self._reader.list(step)
        counter = page.counter
        while True:
            await self._slices.run(kept.take, page.entries)
            if kept.is_full or not page.continue_token or kept.looked_at >= _SCAN_AT_MOST:
                break
            page = await self._reader.list(replace(step, continue_token=page.continue_token))
        token = page.continue_token
        if kept.cut_after is not None:
            key = keys.object_key(kept.cut_after.namespace, kept.cut_after.name).encode()
            token = write_token(Position(generation, kept.cut_after.cluster, key))
        return _Found(Page(kept.entries, token, None, counter), kept.unjudged)


class _Kept:
    """The objects of a page that match a field selector, up to a number and a size."""

    def __init__(self, fields: FieldSelector, limit: int) -> None:
        self._fields = fields
        self._limit = limit
        self._size = 0
        self._last: Entry | None = None
        self.entries: list[Entry] = []
        self.unjudged: dict[str, int] = {}
        self.looked_at = 0
        self.cut_after: Entry | None = None
        """The last object that was decided, when there was no room for a later one."""

    @property
    def is_full(self) -> bool:
        """Whether the page ends here."""
        return self.cut_after is not None or len(self.entries) >= self._limit

    def take(self, entry: Entry) -> bool:
        """Look into the next object; whether there is no room for it."""
        if self._matches(entry) and not self._keep(entry):
            self.cut_after = self._last
            return True
        self.looked_at += 1
        self._last = entry
        return False

    def _matches(self, entry: Entry) -> bool:
        body = body_of(entry)
        try:
            tree: Any = msgspec.json.decode(body) if body else None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            tree = None  # a number that no double holds: one such object must not spoil the list
        if tree is None:
            self.unjudged[entry.cluster] = self.unjudged.get(entry.cluster, 0) + 1
            return False
        return self._fields.matches(tree)

    def _keep(self, entry: Entry) -> bool:
        size = self._size + len(entry.body)
        if self.entries and (len(self.entries) >= self._limit or size > MAX_PAGE_BYTES):
            return False
        self.entries.append(entry)
        self._size = size
        return True


def describe_resource(known: KnownResource) -> dict[str, Any]:
    """What an answer says of the resource it is about."""
    return {
        "group": known.group,
        "plural": known.plural,
        "kind": known.kind,
        "namespaced": known.namespaced,
        "versions": known.versions,
    }


def _count_fitting(entries: Sequence[Entry]) -> int:
    size = 0
    for count, entry in enumerate(entries):
        size += len(entry.body)
        if size > MAX_PAGE_BYTES and count:
            return count
    return len(entries)


def _push_down(query: ListQuery, fields: FieldSelector) -> tuple[ListQuery, FieldSelector]:
    """Let the index answer what it can: namespace and name."""
    rest: list[FieldRequirement] = []
    for requirement in fields.requirements:
        field = {"metadata.namespace": "namespace", "metadata.name": "name"}.get(requirement.path)
        is_open = field is not None and getattr(query, field) is None
        if field and is_open and requirement.is_equal and requirement.value:
            query = replace(query, **{field: requirement.value})
        else:
            rest.append(requirement)
    return query, FieldSelector(tuple(rest))


def _with_unjudged(
    freshness: Mapping[str, Freshness], unjudged: Mapping[str, int]
) -> dict[str, Freshness]:
    """An object whose body is missing may match or not: the answer says that it is left out."""
    marked = dict(freshness)
    for cluster, count in unjudged.items():
        held = marked[cluster]
        reason = "; ".join(filter(None, (held.reason, f"{count} objects without a body left out")))
        marked[cluster] = replace(held, is_complete=False, reason=reason)
    return marked
