"""Gets and lists objects of a cluster, or of the fleet, in the form that a client accepts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from fleetbus.snapshot import Entry, Freshness, ListQuery, SnapshotReader
from fleetbus_query_api.catalog.readable import Readable, Selection
from fleetbus_query_api.catalog.served import FLEET, no_cluster
from fleetbus_query_api.fields.list_page import ListPage
from fleetbus_query_api.fields.pages import MAX_PAGE_BYTES
from fleetbus_query_api.kube.negotiation import (
    METADATA,
    METADATA_LIST,
    OBJECT_FORMS,
    TABLE,
    is_typed,
    negotiate,
)
from fleetbus_query_api.kube.objects.forms import CLOSING, Form, MetadataOnly, WholeObjects
from fleetbus_query_api.kube.objects.list_response import ListStream, freshness_headers
from fleetbus_query_api.kube.objects.object_bytes import ObjectBytes
from fleetbus_query_api.kube.objects.subresources import (
    SCALE,
    SCALE_COLUMNS,
    SCALE_KIND,
    SCALE_VERSION,
    scale_of,
)
from fleetbus_query_api.kube.objects.table_form import TableRows
from fleetbus_query_api.kube.parameters import KubeParameters
from fleetbus_query_api.kube.problems import (
    FutureVersionProblem,
    NotAcceptableProblem,
    SeveralClustersProblem,
    no_object,
    no_resource,
)
from fleetbus_query_api.kube.waits import followed_name
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    members_of,
    with_undecided,
)
from fleetbus_query_api.requests.kube_paths import ResourcePath
from fleetbus_query_api.requests.parameters import MAX_PAGE
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import GoneProblem, NotFoundProblem
from fleetbus_query_api.responses.render import FIXED_HEADERS, join_slices, json_response
from fleetbus_query_api.tables.columns import columns_of

_STREAMED: Final = 250
"""Objects of a list without a limit that are in memory at a time."""
_BUILT: Final = 4
"""Pages that are read and rendered at a time: each takes three times its size meanwhile, and more
of them would not be faster, because one thread renders them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeRequest:
    """A request for objects.

    Attributes:
        cluster: `-` for the whole fleet.
        accept: the Accept header.
        shows_all: whether the client is known to show objects of one name side by side.
    """

    user: User
    cluster: str
    path: ResourcePath
    parameters: KubeParameters
    accept: str
    shows_all: bool = False

    @property
    def is_fleet(self) -> bool:
        """Whether it is for all clusters."""
        return self.cluster == FLEET


class KubeObjects:
    """Answers requests for objects.

    Args:
        reader: the snapshot.
        listing: finds what a user may read, and pages of it.
        slices: run the rendering.
    """

    def __init__(
        self, *, reader: SnapshotReader, listing: ObjectListing, slices: TimeSlices
    ) -> None:
        self._reader = reader
        self._listing = listing
        self._slices = slices
        # Nobody holds it while a client is waited for.
        self._building = asyncio.Semaphore(_BUILT)

    async def find(self, kube_request: KubeRequest, verb: str) -> Readable:
        """Find the resource, and the clusters in which the user may read it.

        Raises:
            NotFoundProblem: it is not served there, or not to this user.
            UnavailableProblem: the hub does not decide.
        """
        path = kube_request.path
        selection = Selection(
            verb=verb,
            resource=path.key,
            clusters=() if kube_request.is_fleet else (kube_request.cluster,),
            namespace=path.namespace,
            name=path.name,
            is_key=True,
        )
        try:
            readable = await self._listing.find(kube_request.user, selection)
        except NotFoundProblem as e:
            if path.name:
                raise no_object(path) from None
            raise no_resource(path, str(e)) from None
        _check_served(kube_request, readable)
        return readable

    def form_of(self, kube_request: KubeRequest, readable: Readable) -> Form:
        """The form in which the client accepts the objects.

        Raises:
            NotAcceptableProblem: it accepts none that there is.
        """
        form = negotiate(kube_request.accept, OBJECT_FORMS)
        resource, path = readable.resource, kube_request.path
        of = ObjectBytes(path.api_version, resource.kind, names_cluster=kube_request.is_fleet)
        if is_scale := path.subresource == SCALE:
            of = ObjectBytes(SCALE_VERSION, SCALE_KIND, names_cluster=kube_request.is_fleet)
        if form.kind == TABLE:
            include = kube_request.parameters.include_object
            columns = SCALE_COLUMNS if is_scale else columns_of(resource, readable.clusters)
            return TableRows(columns, of, include=include, version=form.version)
        list_kind = resource.list_kind(readable.clusters)
        if form.kind:
            _check_kind(form.kind, resource.kind if path.name else list_kind, is_list=not path.name)
            return MetadataOnly(of, form.version)
        return WholeObjects(of, list_kind)

    async def get(self, kube_request: KubeRequest) -> Response:
        """Get one object; in the fleet, the objects of this name in all clusters.

        Raises:
            NotFoundProblem: there is none, or the user may not read it (rule A2).
            NotAcceptableProblem: the client accepts no form that there is.
            FutureVersionProblem: the snapshot has not reached the version.
            SeveralClustersProblem: several clusters have it, and the client expects one object.
        """
        path = kube_request.path
        readable = await self.find(kube_request, "get")
        form = self.form_of(kube_request, readable)
        await self._check_version(kube_request.parameters)
        entries, freshness = await self._entries(kube_request, readable)
        headers = freshness_headers(freshness)
        if not entries:
            error = no_object(path)
            error.headers = headers
            raise error
        if len(entries) > 1 and is_typed(kube_request.accept):
            raise SeveralClustersProblem(path, path.name, [entry.cluster for entry in entries])
        if path.subresource == SCALE:
            entries = list(map(scale_of, entries))
        return json_response(form.answer(entries), headers=headers)

    async def refuse_following(self, kube_request: KubeRequest, readable: Readable) -> None:
        """Refuse to follow one name in the fleet, where the objects of several clusters have it.

        Raises:
            SeveralClustersProblem: the client would take them for states of one object.
        """
        name = followed_name(kube_request.parameters.fields)
        is_table = negotiate(kube_request.accept, OBJECT_FORMS).kind == TABLE
        if not kube_request.is_fleet or not name or is_table or kube_request.shows_all:
            return
        path = kube_request.path
        query = ListQuery(
            clusters=members_of(readable),
            resource=path.key,
            namespace=path.namespace or (None if readable.resource.namespaced else ""),
            name=name,
            count=False,
        )
        clusters: dict[str, list[str]] = {}
        for entry in (await self._reader.list(query)).entries:
            clusters.setdefault(entry.namespace, []).append(entry.cluster)
        if several := next((each for each in clusters.values() if len(each) > 1), None):
            raise SeveralClustersProblem(path, name, several)

    async def _entries(
        self, kube_request: KubeRequest, readable: Readable
    ) -> tuple[Sequence[Entry], Mapping[str, Freshness]]:
        path = kube_request.path
        place = (path.key, path.namespace, path.name)
        if not kube_request.is_fleet:
            entry, state = await self._reader.get_with_freshness(kube_request.cluster, *place)
            return [] if entry is None else [entry], {kube_request.cluster: state}
        # Freshness first: what is read after it is at least as fresh as it says (rule A4).
        freshness = await self._listing.freshness(readable, path.namespace)
        query = ListQuery(
            clusters=members_of(readable),
            resource=path.key,
            namespace=path.namespace,
            name=path.name,
            count=False,
        )
        return (await self._reader.list(query)).entries, freshness

    async def list(self, kube_request: KubeRequest) -> Response:
        """List objects: a page, or without a limit all of them, as a stream.

        Raises:
            NotFoundProblem: the resource is not served there, or not to this user (rule A2).
            NotAcceptableProblem: the client accepts no form that there is.
            InvalidToken: the continue token is malformed.
            ExpiredToken: the continue token is of a lost store.
            FutureVersionProblem: the snapshot has not reached the version.
            GoneProblem: the list at exactly this version is not known.
        """
        readable = await self.find(kube_request, "list")
        form = self.form_of(kube_request, readable)
        if kube_request.parameters.resource_version == 0:  # the list before a watch
            await self.refuse_following(kube_request, readable)
        await self._check_version(kube_request.parameters)
        freshness = await self._listing.freshness(readable, kube_request.path.namespace)
        pages = _Pages(self._listing, kube_request, readable)
        async with self._building:
            result = await pages.read()
            if kube_request.parameters.limit is not None or not pages.has_more:
                return await self._answer(pages, result, form, freshness)
            items = await self._render(form, result.page.entries)
        undecided = await self._without_bodies(kube_request, readable)
        headers = freshness_headers(with_undecided(freshness, undecided))
        return ListStream(
            self._stream(pages, items, form),
            headers={**FIXED_HEADERS, **headers},
            media_type="application/json",
        )

    async def _answer(
        self, pages: _Pages, result: ListPage, form: Form, freshness: Mapping[str, Freshness]
    ) -> Response:
        """Answer a page, as a whole."""
        entries = list(result.page.entries)
        undecided = Counter(result.undecided)
        size = last = _size_of(entries)
        while pages.has_more and size + last <= MAX_PAGE_BYTES:
            result = await pages.read()
            entries += result.page.entries
            undecided.update(result.undecided)
            last = _size_of(result.page.entries)
            size += last
        headers = freshness_headers(with_undecided(freshness, undecided))
        items = await self._render(form, entries)
        return json_response([form.opening(pages.metadata()), *items, CLOSING], headers=headers)

    async def _stream(
        self, pages: _Pages, items: Sequence[bytes], form: Form
    ) -> AsyncGenerator[bytes]:
        """Yield a list page by page; the next one is read when the client has received this one."""
        before = form.opening(pages.metadata())
        while True:
            if items:
                yield before
                for chunk in join_slices(items):
                    yield chunk
                before = b","
            if not pages.has_more:
                break
            async with self._building:
                items = await self._render(form, (await pages.read()).page.entries)
        yield CLOSING if before == b"," else before + CLOSING

    async def _render(self, form: Form, entries: Sequence[Entry]) -> list[bytes]:
        """The items, with commas between them; they are not joined, which would copy them."""
        items: list[bytes] = []
        item = form.items(entries)

        def render(entry: Entry) -> None:
            items.extend((b",", item(entry)))

        await self._slices.run(render, entries)
        return items[1:]

    async def _without_bodies(
        self, kube_request: KubeRequest, readable: Readable
    ) -> Mapping[str, int]:
        """Count the objects that cannot be matched, without a body, by cluster."""
        if not kube_request.parameters.fields:
            return {}
        entries = await self._reader.unlabelled(members_of(readable), kube_request.path.key)
        namespace = kube_request.path.namespace  # the user may have no right in others (rule A2)
        return Counter(each.cluster for each in entries if namespace in ("", each.namespace))

    async def _check_version(self, parameters: KubeParameters) -> None:
        """Refuse what a cache of the present cannot answer (rule A5)."""
        version = parameters.resource_version
        if not version:
            return
        present = await self._reader.version()
        if version > present:
            raise FutureVersionProblem(version, present)
        if parameters.resource_version_match == "Exact" and version != present:
            raise GoneProblem("The resourceVersion for the provided list is too old.")


class _Pages:
    """Reads the pages of one answer.

    Args:
        listing: reads them.
        kube_request: the request.
        readable: what the user may read of it.
    """

    def __init__(
        self, listing: ObjectListing, kube_request: KubeRequest, readable: Readable
    ) -> None:
        parameters = kube_request.parameters
        self._listing = listing
        self._fields = parameters.fields
        self._left = parameters.limit
        self._version = 0
        self._remaining: int | None = None
        self._query = ListQuery(
            clusters=members_of(readable),
            resource=kube_request.path.key,
            namespace=kube_request.path.namespace or None,
            labels=parameters.labels or None,
            limit=MAX_PAGE,
            continue_token=parameters.continue_token,
            # Servers do not count with a selector either.
            count=not (parameters.labels or parameters.fields),
        )
        self._is_first = True

    @property
    def has_more(self) -> bool:
        """Whether another page belongs to the answer.

        A page of a field selector ends after so many objects that were matched in vain (rule A8).
        """
        if self._left is not None and self._fields and not self._is_first:
            return False
        is_wanted = self._left is None or self._left > 0
        return is_wanted and (self._is_first or bool(self._query.continue_token))

    async def read(self) -> ListPage:
        """Read the next page."""
        limit = _STREAMED if self._left is None else min(self._left, MAX_PAGE)
        result = await self._listing.page(replace(self._query, limit=limit), self._fields)
        if self._is_first:
            self._version = result.page.counter
        self._is_first = False
        self._remaining = result.page.remaining
        self._query = replace(self._query, continue_token=result.page.continue_token)
        if self._left is not None:
            self._left -= len(result.page.entries)
        return result

    def metadata(self) -> dict[str, Any]:
        """The metadata of the list: its version is that before the first object (rule A5)."""
        fields: dict[str, Any] = {"resourceVersion": str(self._version)}
        if self._left is None or not self._query.continue_token:
            return fields
        fields["continue"] = self._query.continue_token
        return fields | ({"remainingItemCount": self._remaining} if self._remaining else {})


def _check_served(kube_request: KubeRequest, readable: Readable) -> None:
    """Refuse what the user may read but is not there; they may know that.

    Raises:
        NotFoundProblem: no such cluster, resource or version, or the path is of another scope.
    """
    path, resource, fleet = kube_request.path, readable.resource, readable.fleet
    if resource.namespaced is not bool(path.namespace) and (path.name or path.namespace):
        scope = "namespaced" if resource.namespaced else "not namespaced"
        raise no_resource(path, f"it is {scope}")
    versions: Sequence[str] = resource.versions
    if not kube_request.is_fleet:
        if kube_request.cluster not in fleet.clusters:
            raise no_cluster(kube_request.cluster)
        record = fleet.watched[kube_request.cluster].get(path.key)
        if record is None:
            raise no_resource(path, f"it is not watched in cluster {kube_request.cluster!r}")
        versions = [record.version]
    if path.version not in versions:
        names = " and ".join(versions)
        raise no_resource(path, f"its objects are kept in version {names}, not {path.version[:80]}")


def _check_kind(form: str, kind: str, *, is_list: bool) -> None:
    """Refuse the metadata of a list for one object, and of one object for a list."""
    if form == (METADATA_LIST if is_list else METADATA):
        return
    actual = f"a list (*{kind})" if is_list else f"not a list (*{kind})"
    raise NotAcceptableProblem(f"you requested {form}, but the requested object is {actual}")


def _size_of(entries: Sequence[Entry]) -> int:
    return sum(len(entry.body) for entry in entries)
