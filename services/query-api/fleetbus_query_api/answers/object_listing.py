"""Lists objects of the snapshot in pages, and gets single ones, with their freshness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldRequirement, FieldSelector, LabelSelector
from fleetbus.snapshot import (
    Entry,
    Freshness,
    ListQuery,
    Page,
    ResourceState,
    SnapshotReader,
)
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.access.user import User
from fleetbus_query_api.answers.catalog import Catalog, KnownResource
from fleetbus_query_api.answers.parameters import ListParameters, require_few
from fleetbus_query_api.answers.problem import NotFoundProblem
from fleetbus_query_api.answers.readable import (
    UNREADABLE,
    Readable,
    ReadableResources,
    Selection,
)
from fleetbus_query_api.answers.render import (
    body_of,
    render_freshness,
    render_item,
    render_items,
    render_list,
    render_one,
)
from fleetbus_query_api.limits.time_slices import TimeSlices

MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
"""Bodies per page (rule A8); a single object may be larger, but is never sent with another."""

_SCAN_STEP: Final = 250
_MAX_SCANNED: Final = 20_000
"""Objects that one request matches; the next page continues from there (rule A8)."""

_INDEXED: Final = {
    FieldPath(("metadata", "namespace")): "namespace",
    FieldPath(("metadata", "name")): "name",
}

NOT_WATCHED: Final = "not watched there"
"""Why a cluster is not complete that does not serve a resource, or whose watch spec omits it."""
_NOT_A_MEMBER: Final = Freshness(
    ResourceState.UNKNOWN, None, is_complete=False, reason="not in the fleet"
)


@dataclass(frozen=True, slots=True)
class Found:
    """One page, and how many objects per cluster have no body to match."""

    page: Page
    undecided: Mapping[str, int]


class ObjectListing:
    """Answers requests for objects, as JSON.

    Args:
        reader: the snapshot.
        catalog: resolves resource names.
        slices: run the matching of objects.
        access: decides what a user may read.
    """

    def __init__(
        self, *, reader: SnapshotReader, catalog: Catalog, slices: TimeSlices, access: Access
    ) -> None:
        self._reader = reader
        self._slices = slices
        self._readable = ReadableResources(catalog=catalog, access=access)

    async def list(self, user: User, resource: str, asked: ListParameters) -> Sequence[bytes]:
        """List one page of a resource, in parts, over the clusters in which the user may list it.

        Raises:
            BadRequestProblem: a selector has too many requirements.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        fields = FieldSelector.parse(asked.field_selector)
        labels = LabelSelector.parse(asked.label_selector)
        require_few("fieldSelector", len(fields.requirements))
        require_few("labelSelector", len(labels.requirements))
        readable = await self.find(
            user,
            Selection(
                verb="list",
                resource=resource,
                clusters=asked.cluster,
                namespace=asked.namespace,
            ),
        )
        known = readable.known
        # Freshness first: rows read after it are at least as fresh as it says (rule A4).
        freshness = await self.freshness(readable, asked.namespace)
        found = await self.page(_query(members_of(readable), known, asked, labels), fields)
        return render_list(
            render_items(found.page.entries),
            {
                "continue": found.page.continue_token,
                "remaining": found.page.remaining,
                "resourceVersion": str(found.page.counter),
                "resource": describe_resource(known),
                **render_freshness(with_undecided(freshness, found.undecided)),
            },
        )

    async def get(
        self, user: User, cluster: str, resource: str, namespace: str, name: str
    ) -> bytes:
        """Get one object.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such resource, cluster or object, or the user may not read it; with
                the freshness if they may.
        """
        wanted = Selection(
            verb="get", resource=resource, clusters=[cluster], namespace=namespace, name=name
        )
        readable = await self.find(user, wanted)
        known = readable.known
        freshness = render_freshness(await self.freshness(readable, namespace))
        entry = None
        if members_of(readable):
            entry = await self._reader.get(cluster, known.key, namespace, name)
        if entry is None:
            # One answer for an absent cluster, namespace and name (rule A2).
            raise NotFoundProblem("the snapshot has no such object", **freshness)
        return render_one(render_item(entry), {"resource": describe_resource(known), **freshness})

    async def find(self, user: User, wanted: Selection) -> Readable:
        """Find what the user may read; see `ReadableResources.find`."""
        return await self._readable.find(user, wanted)

    async def freshness(self, readable: Readable, namespace: str = "") -> dict[str, Freshness]:
        """The freshness of a resource in each cluster that the answer names (rule A4)."""
        fleet, known = readable.fleet, readable.known
        members = members_of(readable)
        found = await self._reader.freshness(members, known.key, namespace=namespace)
        for name in members:
            if fleet.lacks(name, known.key):
                found[name] = replace(found[name], reason=NOT_WATCHED)
        named = {name: found.get(name, _NOT_A_MEMBER) for name in readable.clusters}
        named |= dict.fromkeys(readable.left_out, UNREADABLE)
        return dict(sorted(named.items()))

    async def page(self, query: ListQuery, fields: FieldSelector) -> Found:
        """Read a page of at most `MAX_PAGE_BYTES`, of the objects whose fields match.

        Raises:
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token is of a lost store.
        """
        query, rest = push_down(replace(query, max_bytes=MAX_PAGE_BYTES), fields)
        return await self._scan(query, rest) if rest else Found(await self._reader.list(query), {})

    async def _scan(self, query: ListQuery, fields: FieldSelector) -> Found:
        """Match objects until the page is full; what remains is not counted."""
        step = replace(query, limit=_SCAN_STEP, count=False)
        matching = _MatchingPage(fields, query.limit or _MAX_SCANNED)
        page = await self._reader.list(step)
        while True:
            await self._slices.run(matching.take, page.entries)
            if matching.is_full or not page.continue_token or matching.scanned >= _MAX_SCANNED:
                break
            page = await self._reader.list(replace(step, continue_token=page.continue_token))
        token = page.continue_token
        if (last := matching.cut_after) is not None:
            token = page.token_after(last)
        page = replace(page, entries=matching.entries, continue_token=token, remaining=None)
        return Found(page, matching.undecided)


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


def members_of(readable: Readable) -> list[str]:
    """The clusters of the fleet that the user may read."""
    return [name for name in readable.clusters if name in readable.fleet.clusters]


def describe_resource(known: KnownResource) -> dict[str, Any]:
    """Describe the resource of an answer."""
    return {
        "group": known.group,
        "plural": known.plural,
        "kind": known.kind,
        "namespaced": known.namespaced,
        "versions": known.versions,
    }


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


def push_down(query: ListQuery, fields: FieldSelector) -> tuple[ListQuery, FieldSelector]:
    """Let the index answer what it can: namespace and name."""
    rest: list[FieldRequirement] = []
    for requirement in fields.requirements:
        field = _INDEXED.get(requirement.path)
        is_open = field is not None and getattr(query, field) is None
        if field and is_open and requirement.only_value:
            query = replace(query, **{field: requirement.only_value})
        else:
            rest.append(requirement)
    return query, FieldSelector(tuple(rest))


def with_undecided(
    freshness: Mapping[str, Freshness], undecided: Mapping[str, int]
) -> dict[str, Freshness]:
    """Mark clusters as incomplete that have objects without a body, which may match or not."""
    marked = dict(freshness)
    for cluster, count in undecided.items():
        held = marked[cluster]
        reason = "; ".join(filter(None, (held.reason, f"{count} objects without a body left out")))
        marked[cluster] = replace(held, is_complete=False, reason=reason)
    return marked
