"""Lists objects of the snapshot in pages, and gets single ones, with their freshness."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fleetbus.kube.field_paths import FieldPath
from fleetbus.kube.selectors import FieldRequirement, FieldSelector, LabelSelector
from fleetbus.snapshot import (
    Freshness,
    ListQuery,
    ResourceState,
    SnapshotReader,
)
from fleetbus_query_api.access.authorise import Access
from fleetbus_query_api.catalog.catalog import Catalog, KnownResource
from fleetbus_query_api.catalog.readable import (
    UNDECIDED,
    UNREADABLE,
    Readable,
    ReadableResources,
    Selection,
)
from fleetbus_query_api.fields.kubernetes_names import translate_fields
from fleetbus_query_api.fields.list_page import ListPage, Pages
from fleetbus_query_api.fields.order import SortKey, parse_paths, parse_sort
from fleetbus_query_api.fields.pages import MAX_PAGE_BYTES, FieldPages
from fleetbus_query_api.fields.projection import MAX_FIELDS, project
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.past.source import PastSources
from fleetbus_query_api.requests.parameters import ListParameters, SelectionParameters, require_few
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import NotFoundProblem
from fleetbus_query_api.responses.render import (
    render_freshness,
    render_item,
    render_items,
    render_list,
    render_one,
)

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
class ListScope:
    """The part of a resource that a user may list, and the query for the objects asked for.

    Attributes:
        readable: the resource and the clusters.
        freshness: was read first; what is read after it is at least as fresh as it says (rule A4).
        query: for these objects, without a limit.
        fields: those that match.
    """

    readable: Readable
    freshness: Mapping[str, Freshness]
    query: ListQuery
    fields: FieldSelector


class ObjectListing:
    """Answers requests for objects, as JSON.

    Args:
        reader: the snapshot.
        catalog: resolves resource names.
        pages: finds those that are selected or sorted by fields.
        past: finds those of the past.
        slices: run the decoding of objects.
        access: decides what a user may read.
    """

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        catalog: Catalog,
        pages: FieldPages,
        past: PastSources,
        slices: TimeSlices,
        access: Access,
    ) -> None:
        self._reader = reader
        self._pages = pages
        self._past = past
        self._slices = slices
        self._readable = ReadableResources(catalog=catalog, access=access)

    async def list(self, user: User, resource: str, parameters: ListParameters) -> Sequence[bytes]:
        """List one page of a resource, in parts, over the clusters in which the user may list it.

        Raises:
            BadRequestProblem: a selector has too many requirements, or `sort` or `fields` is wrong.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
            HistoryError, BusError, UnavailableProblem: as `source`.
        """
        sort = parse_sort(parameters.sort)
        paths = parse_paths("fields", parameters.fields, MAX_FIELDS)
        scope = await self.select(user, resource, parameters)
        query = replace(
            scope.query, limit=parameters.limit, continue_token=parameters.continue_token
        )
        pages = await self.source(parameters.as_of)
        result = await pages.page(query, scope.fields, sort)
        entries = result.page.entries
        if paths:
            entries = []
            await self._slices.run(
                lambda entry: entries.append(project(entry, paths)), result.page.entries
            )
        return render_list(
            render_items(entries),
            {
                "continue": result.page.continue_token,
                "remaining": result.page.remaining,
                "resourceVersion": str(result.page.counter),
                "resource": describe_resource(scope.readable.resource),
                **await past_members(pages, query, result),
                **render_freshness(with_undecided(scope.freshness, result.undecided)),
            },
        )

    async def select(
        self, user: User, resource: str, parameters: ListParameters | SelectionParameters
    ) -> ListScope:
        """Find what a user may list of the objects that a request is about.

        Raises:
            BadRequestProblem: a selector has too many requirements.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        fields, labels = read_selectors(parameters.field_selector, parameters.label_selector)
        selection = Selection(
            verb="list",
            resource=resource,
            clusters=parameters.cluster,
            namespace=parameters.namespace,
        )
        readable = await self.find(user, selection)
        query = ListQuery(
            clusters=members_of(readable),
            resource=readable.resource.key,
            namespace=parameters.namespace or None,
            name=parameters.name or None,
            labels=labels or None,
        )
        # Freshness first: rows read after it are at least as fresh as it says (rule A4).
        freshness = await self.freshness(readable, parameters.namespace)
        return ListScope(
            readable, freshness, query, translate_fields(readable.resource.key, fields)
        )

    async def source(self, as_of: str) -> Pages:
        """Who finds the pages of a list: of the present, or as of a time.

        Raises:
            InvalidTime, HistoryError: the time is malformed, or outside the window.
            UnavailableProblem: the past needs NATS, which is away.
            BusError: the stream cannot be read.
        """
        return await self._past.at(as_of) if as_of else self

    async def get(
        self, user: User, cluster: str, resource: str, namespace: str, name: str
    ) -> bytes:
        """Get one object.

        Raises:
            InvalidName: the resource name is malformed.
            NotFoundProblem: no such resource, cluster or object, or the user may not read it; with
                the freshness if they may.
        """
        selection = Selection(
            verb="get", resource=resource, clusters=[cluster], namespace=namespace, name=name
        )
        readable = await self.find(user, selection)
        known_resource = readable.resource
        entry, states = None, dict[str, Freshness]()
        if members_of(readable):
            entry, states[cluster] = await self._reader.get_with_freshness(
                cluster, known_resource.key, namespace, name
            )
        freshness = render_freshness(_name_freshness(readable, states))
        if entry is None:
            # One answer for an absent cluster, namespace and name (rule A2).
            raise NotFoundProblem("the snapshot has no such object", **freshness)
        return render_one(
            render_item(entry), {"resource": describe_resource(known_resource), **freshness}
        )

    async def find(self, user: User, selection: Selection) -> Readable:
        """Find what the user may read; see `ReadableResources.find`."""
        return await self._readable.find(user, selection)

    async def freshness(self, readable: Readable, namespace: str = "") -> dict[str, Freshness]:
        """The freshness of a resource in each cluster that the answer names (rule A4)."""
        states = await self._reader.freshness(
            members_of(readable), readable.resource.key, namespace=namespace
        )
        return _name_freshness(readable, states)

    def walk(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey]
    ) -> AsyncGenerator[ListPage]:
        """Yield pages of objects in the order of a field; see `FieldPages.walk`."""
        return self._pages.walk(query, fields, sort)

    async def members(self, query: ListQuery) -> dict[str, Any]:
        """No more members: a list of the present has nothing to add."""
        del query
        return {}

    async def page(
        self, query: ListQuery, fields: FieldSelector, sort: Sequence[SortKey] = ()
    ) -> ListPage:
        """Read a page of at most `MAX_PAGE_BYTES`, of the objects whose fields match.

        Without a sort key they come by cluster, namespace and name.

        Raises:
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token is of a lost store.
        """
        query, other_fields = push_down(replace(query, max_bytes=MAX_PAGE_BYTES), fields)
        if other_fields or sort:
            return await self._pages.find(query, other_fields, sort)
        return ListPage(await self._reader.list(query), {})


def _name_freshness(readable: Readable, states: Mapping[str, Freshness]) -> dict[str, Freshness]:
    """Return the freshness of each cluster that the answer names, even if it was not read."""
    fleet, resource = readable.fleet, readable.resource
    named = {name: states.get(name, _NOT_A_MEMBER) for name in readable.clusters}
    for name in states:
        if fleet.lacks(name, resource.key):
            named[name] = replace(states[name], reason=NOT_WATCHED)
    named |= dict.fromkeys(readable.left_out, UNREADABLE)
    named |= dict.fromkeys(readable.undecided, UNDECIDED)
    return dict(sorted(named.items()))


def read_selectors(fields: str, labels: str) -> tuple[FieldSelector, LabelSelector]:
    """Parse selectors.

    Raises:
        BadRequestProblem: one has too many requirements.
        InvalidSelector: one is malformed.
    """
    by_field, by_label = FieldSelector.parse(fields), LabelSelector.parse(labels)
    require_few("fieldSelector", len(by_field.requirements))
    require_few("labelSelector", len(by_label.requirements))
    return by_field, by_label


async def past_members(pages: Pages, query: ListQuery, result: ListPage) -> dict[str, Any]:
    """The members of an answer about the past; none if it is about the present."""
    more = await pages.members(query)
    return more | ({"undetermined": result.undetermined.render()} if more else {})


def members_of(readable: Readable) -> list[str]:
    """The clusters of the fleet that the user may read."""
    return [name for name in readable.clusters if name in readable.fleet.clusters]


def describe_resource(resource: KnownResource) -> dict[str, Any]:
    """Describe the resource of an answer."""
    return {
        "group": resource.group,
        "plural": resource.plural,
        "kind": resource.kind,
        "namespaced": resource.namespaced,
        "versions": resource.versions,
    }


def push_down(query: ListQuery, fields: FieldSelector) -> tuple[ListQuery, FieldSelector]:
    """Let the index answer what it can: namespace and name."""
    remaining: list[FieldRequirement] = []
    for requirement in fields.requirements:
        field = _INDEXED.get(requirement.path)
        is_open = field is not None and getattr(query, field) is None
        if field and is_open and requirement.only_value:
            query = replace(query, **{field: requirement.only_value})
        else:
            remaining.append(requirement)
    return query, FieldSelector(tuple(remaining))


def with_undecided(
    freshness: Mapping[str, Freshness],
    undecided: Mapping[str, int],
    why: str = "objects without a body left out",
) -> dict[str, Freshness]:
    """Mark clusters as incomplete: so many of their objects may match or not."""
    marked = dict(freshness)
    for cluster, count in undecided.items():
        state = marked[cluster]
        reason = "; ".join(filter(None, (state.reason, f"{count} {why}")))
        marked[cluster] = replace(state, is_complete=False, reason=reason)
    return marked
