"""Lists objects of the snapshot in pages, and gets single ones, with their freshness."""

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
from fleetbus_query_api.answers.catalog import (
    Catalog,
    KnownFleet,
    KnownResource,
    read_generation,
)
from fleetbus_query_api.answers.parameters import ListParameters, require_few
from fleetbus_query_api.answers.problem import NotFoundProblem
from fleetbus_query_api.answers.render import (
    body_of,
    render_freshness,
    render_item,
    render_list,
    render_one,
)
from fleetbus_query_api.limits.time_slices import TimeSlices

MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
"""Bodies per page (rule A8); a single object may be larger, but is never sent with another."""

_SCAN_STEP: Final = 250
_MAX_SCANNED: Final = 20_000
"""Objects that one request matches; the next page continues from there (rule A8)."""

_NOT_A_MEMBER: Final = Freshness(
    ResourceState.UNKNOWN, None, is_complete=False, reason="not in the fleet"
)


@dataclass(frozen=True, slots=True)
class _Found:
    """One page, and how many objects per cluster have no body to match."""

    page: Page
    undecided: Mapping[str, int]


class ObjectListing:
    """Answers requests for objects, as JSON.

    Args:
        reader: the snapshot.
        catalog: resolves resource names.
        slices: run the matching of objects.
    """

    def __init__(self, *, reader: SnapshotReader, catalog: Catalog, slices: TimeSlices) -> None:
        self._reader = reader
        self._catalog = catalog
        self._slices = slices

    async def list(self, resource: str, asked: ListParameters) -> bytes:
        """List one page of a resource, over clusters.

        Raises:
            BadRequestProblem: a selector has too many requirements.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource.
        """
        fields = FieldSelector.parse(asked.field_selector)
        labels = LabelSelector.parse(asked.label_selector)
        require_few("fieldSelector", len(fields.requirements))
        require_few("labelSelector", len(labels.requirements))
        fleet = await self._catalog.fleet()
        known = fleet.find(resource)
        clusters = sorted(set(asked.cluster)) or list(fleet.clusters)
        # Freshness first: rows read after it are at least as fresh as it says (rule A4).
        freshness = await self.freshness(fleet, clusters, known, asked.namespace)
        members = [name for name in clusters if name in fleet.clusters]
        query, rest = _push_down(_query(members, known, asked, labels), fields)
        found = await self._scan(query, rest) if rest else _Found(await self._page(query), {})
        return render_list(
            map(render_item, found.page.entries),
            {
                "continue": found.page.continue_token,
                "remaining": found.page.remaining,
                "resourceVersion": str(found.page.counter),
                "resource": describe_resource(known),
                **render_freshness(_with_undecided(freshness, found.undecided)),
            },
        )

    async def get(self, cluster: str, resource: str, namespace: str, name: str) -> bytes:
        """Get one object.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such resource, cluster or object; it has the freshness.
        """
        fleet = await self._catalog.fleet()
        known = fleet.find(resource)
        freshness = render_freshness(await self.freshness(fleet, [cluster], known, namespace))
        entry = None
        if cluster in fleet.clusters:
            entry = await self._reader.get(cluster, known.key, namespace, name)
        if entry is None:
            # One answer for an absent cluster, namespace and name (rule A2).
            raise NotFoundProblem("the snapshot has no such object", **freshness)
        return render_one(render_item(entry), {"resource": describe_resource(known), **freshness})

    async def freshness(
        self, fleet: KnownFleet, clusters: Sequence[str], known: KnownResource, namespace: str = ""
    ) -> dict[str, Freshness]:
        """The freshness of a resource in each cluster (rule A4)."""
        members = [name for name in clusters if name in fleet.clusters]
        found = await self._reader.freshness(members, known.key, namespace=namespace)
        for name in members:
            if fleet.lacks(name, known.key):
                found[name] = replace(found[name], reason="not watched there")
        return {name: found.get(name, _NOT_A_MEMBER) for name in clusters}

    async def _page(self, query: ListQuery) -> Page:
        """Read a page within `MAX_PAGE_BYTES`: a larger one is read again with fewer objects."""
        page = await self._reader.list(query)
        while (fitting := _count_fitting(page.entries)) < len(page.entries):
            page = await self._reader.list(replace(query, limit=fitting))
        return page

    async def _scan(self, query: ListQuery, fields: FieldSelector) -> _Found:
        """Match objects until the page is full; what remains is not counted."""
        generation = await read_generation(self._reader)
        step = replace(query, limit=_SCAN_STEP, count=False)
        matching = _MatchingPage(fields, query.limit or _MAX_SCANNED)
        page = await self._reader.list(step)
        counter = page.counter
        while True:
            await self._slices.run(matching.take, page.entries)
            if matching.is_full or not page.continue_token or matching.scanned >= _MAX_SCANNED:
                break
            page = await self._reader.list(replace(step, continue_token=page.continue_token))
        token = page.continue_token
        if (last := matching.cut_after) is not None:
            key = keys.object_key(last.namespace, last.name).encode()
            token = write_token(Position(generation, last.cluster, key))
        return _Found(Page(matching.entries, token, None, counter), matching.undecided)


class _MatchingPage:
    """The objects of a page that match a field selector, up to a number and a size."""

    def __init__(self, fields: FieldSelector, limit: int) -> None:
        self._fields = fields
        self._limit = limit
        self._size = 0
        self._last: Entry | None = None
        self.entries: list[Entry] = []
        self.undecided: dict[str, int] = {}
        self.scanned = 0
        self.cut_after: Entry | None = None
        """The last object that was matched, if there was no room for a later one."""

    @property
    def is_full(self) -> bool:
        """Whether the page ends here."""
        return self.cut_after is not None or len(self.entries) >= self._limit

    def take(self, entry: Entry) -> bool:
        """Match the next object; answers whether there is no room for it."""
        if self._matches(entry) and not self._keep(entry):
            self.cut_after = self._last
            return True
        self.scanned += 1
        self._last = entry
        return False

    def _matches(self, entry: Entry) -> bool:
        body = body_of(entry)
        try:
            tree: Any = msgspec.json.decode(body) if body else None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            tree = None  # a number beyond a double: one such object must not break the list
        if tree is None:
            self.undecided[entry.cluster] = self.undecided.get(entry.cluster, 0) + 1
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
    """Describe the resource of an answer."""
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


def _query(
    members: Sequence[str], known: KnownResource, asked: ListParameters, labels: LabelSelector
) -> ListQuery:
    return ListQuery(
        clusters=members,
        resource=known.key,
        namespace=asked.namespace or None,
        name=asked.name or None,
        labels=labels or None,
        limit=asked.limit,
        continue_token=asked.continue_token,
    )


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


def _with_undecided(
    freshness: Mapping[str, Freshness], undecided: Mapping[str, int]
) -> dict[str, Freshness]:
    """Mark clusters as incomplete that have objects without a body, which may match or not."""
    marked = dict(freshness)
    for cluster, count in undecided.items():
        held = marked[cluster]
        reason = "; ".join(filter(None, (held.reason, f"{count} objects without a body left out")))
        marked[cluster] = replace(held, is_complete=False, reason=reason)
    return marked
