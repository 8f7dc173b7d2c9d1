"""Serves the read paths of multi_resource_operator: list, list_with_cluster and list_cluster.

Parameters, order and errors are the same, but labels are supported, an unknown resource is an
error, and headers name the clusters whose part of the answer is incomplete (rule A4), and the next
page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from fleetbus.kube.selectors import FieldSelector, LabelSelector
from fleetbus.snapshot import Entry, ListQuery, Page, SnapshotReader
from fleetbus_query_api.catalog.cluster_listing import ClusterListing
from fleetbus_query_api.catalog.readable import Selection
from fleetbus_query_api.fields.list_page import ListPage
from fleetbus_query_api.fields.order import parse_sort
from fleetbus_query_api.objects.listing import ObjectListing, members_of
from fleetbus_query_api.requests.parameters import check_repeats, require_few
from fleetbus_query_api.requests.routing import component
from fleetbus_query_api.requests.user import RequestUser, User
from fleetbus_query_api.responses.problem import BadRequestProblem
from fleetbus_query_api.responses.render import (
    FIXED_HEADERS,
    body_of,
    incomplete_header,
    join_slices,
    json_response,
)

CONTINUE_HEADER: Final = "Fleetbus-Continue"
"""For `continue` of the next request; there is none on the last page."""
_MAX_LIMIT: Final = 1_000_000
_MAX_SORTED: Final = 200_000
_SORTED_AT_A_TIME: Final = 10_000
"""Each of these is in memory, without its body, until it was sent."""
_ALL: Final = FieldSelector(())
_NEWEST_FIRST: Final = parse_sort("-metadata.creationTimestamp")
_LABEL = re.compile(r"labels\[([^\[\]]+)\]")
_PARAMETERS: Final = ("gvr", "name", "namespace", "cluster", "limit", "continue")


_OPENAPI: Final[dict[str, Any]] = {
    "parameters": [
        {"name": name, "in": "query", "required": name == "gvr", "schema": {"type": "string"}}
        for name in _PARAMETERS
    ]
    + [
        {
            "name": "labels",
            "in": "query",
            "style": "deepObject",
            "schema": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class V1Query:
    """The parameters of a list; an empty string means all."""

    gvr: str
    name: str
    namespace: str
    cluster: str
    limit: int
    """0 means all."""
    labels: LabelSelector
    continue_token: str

    @classmethod
    def read(cls, pairs: Sequence[tuple[str, str]]) -> Self:
        """Parse query parameters.

        Raises:
            BadRequestProblem: one is missing, unknown, given twice or malformed.
            InvalidSelector: `labels[k]=v` is not a valid label.
        """
        check_repeats([name for name, _ in pairs])
        labels = {match[1]: value for name, value in pairs if (match := _LABEL.fullmatch(name))}
        for name, _ in pairs:
            if name not in _PARAMETERS and not _LABEL.fullmatch(name):
                raise BadRequestProblem(f"unknown query parameter {name[:80]!r}")
        require_few("labels", len(labels))
        parameters = dict(pairs)
        if not parameters.get("gvr"):
            raise BadRequestProblem("not found gvr")
        return cls(
            gvr=parameters["gvr"],
            name=parameters.get("name", ""),
            namespace=parameters.get("namespace", ""),
            cluster=parameters.get("cluster", ""),
            limit=_read_limit(parameters.get("limit") or "10"),
            labels=LabelSelector.from_spec({"matchLabels": labels}),
            continue_token=parameters.get("continue", ""),
        )


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequestProblem(f"limit {text[:20]!r} is not a number; 0 means all")
    # Python refuses to parse thousands of digits.
    if len(text) > len(str(_MAX_LIMIT)) or int(text) > _MAX_LIMIT:
        raise BadRequestProblem(f"limit {text[:20]!r} is larger than {_MAX_LIMIT}; 0 means all")
    return int(text)


router = APIRouter(prefix="/v1", tags=["multi_resource_operator"])


@router.get("/list", openapi_extra=_OPENAPI)
async def list_objects(request: Request, user: RequestUser) -> Response:
    """List objects, newest first."""
    return await component(request, NewestObjects).answer(request, user, _object)


@router.get("/list_with_cluster", openapi_extra=_OPENAPI)
async def list_with_cluster(request: Request, user: RequestUser) -> Response:
    """List objects, newest first, each with the name of its cluster."""
    return await component(request, NewestObjects).answer(request, user, _object_with_cluster)


@router.get("/list_cluster")
async def list_clusters(request: Request, user: RequestUser) -> Response:
    """List clusters."""
    return await _list_clusters(
        component(request, ClusterListing), user, request.query_params.multi_items()
    )


async def _list_clusters(
    clusters: ClusterListing, user: User, parameters: Sequence[tuple[str, str]]
) -> Response:
    check_repeats([name for name, _ in parameters])
    if unknown := {name for name, _ in parameters} - {"name"}:
        raise BadRequestProblem(f"unknown query parameter {min(unknown)[:80]!r}")
    records = await clusters.records(user, dict(parameters).get("name", ""))
    rows = [
        {
            "name": record.name,
            "version": record.server_version,
            "host": record.host,
            "platform": record.platform,
            "isMaster": str(record.hub).lower(),
            "status": "Running" if record.connected else record.reason or "Unreachable",
        }
        for record, _ in records
    ]
    freshness = {record.name: state for record, state in records}
    return json_response(msgspec.json.encode(rows), headers=incomplete_header(freshness))


class NewestObjects:
    """Lists the newest objects of a resource, found by their creation time alone.

    Args:
        reader: the snapshot.
        listing: finds them, sorted by a field.
    """

    def __init__(self, *, reader: SnapshotReader, listing: ObjectListing) -> None:
        self._reader = reader
        self._listing = listing

    async def answer(
        self, request: Request, user: User, render: Callable[[Entry], bytes]
    ) -> Response:
        """Answer with an array of objects.

        Raises:
            BadRequestProblem: a parameter is wrong, or all of too many objects are wanted.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
        """
        v1_query = V1Query.read(request.query_params.multi_items())
        selection = Selection(
            verb="list",
            resource=v1_query.gvr,
            clusters=[v1_query.cluster] if v1_query.cluster else [],
            namespace=v1_query.namespace,
        )
        readable = await self._listing.find(user, selection)
        freshness = await self._listing.freshness(readable, v1_query.namespace)
        query = ListQuery(
            clusters=members_of(readable),
            resource=readable.resource.key,
            namespace=v1_query.namespace or None,
            name=v1_query.name or None,
            labels=v1_query.labels or None,
            continue_token=v1_query.continue_token,
            count=False,
        )
        await self._require_few(query, v1_query.limit)
        query = replace(query, limit=min(v1_query.limit or _SORTED_AT_A_TIME, _SORTED_AT_A_TIME))
        pages = self._listing.walk(query, _ALL, _NEWEST_FIRST)
        first = (await anext(pages)).page
        is_whole = len(first.entries) == v1_query.limit and first.continue_token
        more = {CONTINUE_HEADER: first.continue_token} if is_whole else {}
        return StreamingResponse(
            self._stream(request, v1_query.limit, first, pages, render),
            headers={**FIXED_HEADERS, **incomplete_header(freshness), **more},
            media_type="application/json",
        )

    async def _require_few(self, query: ListQuery, limit: int) -> None:
        """Refuse to sort the whole of a large resource again for each page of the answer."""
        if 0 < limit <= _MAX_SORTED:
            return
        if await self._reader.rows.count_candidates(query, most=_MAX_SORTED + 1) > _MAX_SORTED:
            raise BadRequestProblem(
                f"more than {_MAX_SORTED} objects: set a limit, a namespace or a cluster"
            )

    async def _stream(
        self,
        request: Request,
        limit: int,
        first: Page,
        pages: AsyncGenerator[ListPage],
        render: Callable[[Entry], bytes],
    ) -> AsyncGenerator[bytes]:
        """Yield the array in chunks; a page is read when the client has received the one before."""
        yield b"["
        comma, entries = b"", first.entries
        left = limit or sys.maxsize
        async with aclosing(pages):
            while True:
                entries = entries[:left]
                for chunk in join_slices(_with_commas(map(render, entries), comma)):
                    yield chunk
                comma = b"," if entries else comma
                left -= len(entries)
                following = await anext(pages, None) if left else None
                if following is None or await request.is_disconnected():
                    break
                entries = following.page.entries
        yield b"]"


def _with_commas(parts: Iterable[bytes], comma: bytes) -> Iterator[bytes]:
    for item in parts:
        yield comma
        yield item
        comma = b","


def _object(entry: Entry) -> bytes:
    """The object; without a body what is known of it, with an annotation."""
    return body_of(entry) or msgspec.json.encode(
        {
            "metadata": {
                "name": entry.name,
                "namespace": entry.namespace,
                "uid": entry.uid,
                "resourceVersion": entry.resource_version,
                "annotations": {"fleetbus.dev/degraded": entry.degraded or "absent"},
            }
        }
    )


def _object_with_cluster(entry: Entry) -> bytes:
    name = msgspec.json.encode(entry.cluster)
    return b'{"Object":%b,"clusterName":%b}' % (_object(entry), name)
