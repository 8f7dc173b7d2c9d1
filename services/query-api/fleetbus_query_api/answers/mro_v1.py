"""Serves the read paths of multi_resource_operator: list, list_with_cluster and list_cluster.

Parameters, order and errors are the same, but labels are supported, an unknown resource is an
error, and a header names the clusters whose part of the answer is incomplete (rule A4).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot import Entry, ListQuery, SnapshotReader
from fleetbus_query_api.access.user import RequestUser, User
from fleetbus_query_api.answers.cluster_listing import ClusterListing
from fleetbus_query_api.answers.incomplete import incomplete_header
from fleetbus_query_api.answers.object_listing import ObjectListing, members_of
from fleetbus_query_api.answers.parameters import check_repeats, require_few
from fleetbus_query_api.answers.problem import BadRequestProblem
from fleetbus_query_api.answers.readable import Selection
from fleetbus_query_api.answers.render import FIXED_HEADERS, SLICE, body_of, json_response
from fleetbus_query_api.limits.time_slices import TimeSlices

_STEP: Final = 250
_MAX_LIMIT: Final = 1_000_000
_MAX_BYTES: Final = 256 * 1024 * 1024
_LABEL = re.compile(r"labels\[([^\[\]]+)\]")
_PARAMETERS: Final = ("gvr", "name", "namespace", "cluster", "limit")


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

    @classmethod
    def read(cls, pairs: Sequence[tuple[str, str]]) -> Self:
        """Parse query parameters.

        Raises:
            BadRequestProblem: one is missing, unknown, given twice or malformed.
            InvalidSelector: `labels[k]=v` is not a valid label.
        """
        check_repeats([name for name, _ in pairs])
        labels = {found[1]: value for name, value in pairs if (found := _LABEL.fullmatch(name))}
        for name, _ in pairs:
            if name not in _PARAMETERS and not _LABEL.fullmatch(name):
                raise BadRequestProblem(f"unknown query parameter {name[:80]!r}")
        require_few("labels", len(labels))
        given = dict(pairs)
        if not given.get("gvr"):
            raise BadRequestProblem("not found gvr")
        return cls(
            gvr=given["gvr"],
            name=given.get("name", ""),
            namespace=given.get("namespace", ""),
            cluster=given.get("cluster", ""),
            limit=_read_limit(given.get("limit") or "10"),
            labels=LabelSelector.from_spec({"matchLabels": labels}),
        )


def _read_limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadRequestProblem(f"limit {text[:20]!r} is not a number; 0 means all")
    # Python refuses to parse thousands of digits.
    if len(text) > len(str(_MAX_LIMIT)) or int(text) > _MAX_LIMIT:
        raise BadRequestProblem(f"limit {text[:20]!r} is larger than {_MAX_LIMIT}; 0 means all")
    return int(text)


def v1_router(
    *, reader: SnapshotReader, clusters: ClusterListing, listing: ObjectListing, slices: TimeSlices
) -> APIRouter:
    """Build the routes below /v1."""
    router = APIRouter(prefix="/v1", tags=["multi_resource_operator"])
    newest = _NewestObjects(reader=reader, listing=listing, slices=slices)

    @router.get("/list", openapi_extra=_OPENAPI)
    async def list_objects(request: Request, user: RequestUser) -> Response:
        """List objects, newest first."""
        return await newest.answer(request, user, _object)

    @router.get("/list_with_cluster", openapi_extra=_OPENAPI)
    async def list_with_cluster(request: Request, user: RequestUser) -> Response:
        """List objects, newest first, each with the name of its cluster."""
        return await newest.answer(request, user, _object_with_cluster)

    @router.get("/list_cluster")
    async def list_clusters(request: Request, user: RequestUser) -> Response:
        """List clusters."""
        return await _list_clusters(clusters, user, request.query_params.multi_items())

    return router


async def _list_clusters(
    clusters: ClusterListing, user: User, parameters: Sequence[tuple[str, str]]
) -> Response:
    check_repeats([name for name, _ in parameters])
    if unknown := {name for name, _ in parameters} - {"name"}:
        raise BadRequestProblem(f"unknown query parameter {min(unknown)[:80]!r}")
    found = await clusters.records(user, dict(parameters).get("name", ""))
    rows = [
        {
            "name": record.name,
            "version": record.server_version,
            "host": record.host,
            "platform": record.platform,
            "isMaster": str(record.hub).lower(),
            "status": "Running" if record.connected else record.reason or "Unreachable",
        }
        for record, _ in found
    ]
    freshness = {record.name: known for record, known in found}
    return json_response(msgspec.json.encode(rows), headers=incomplete_header(freshness))


class _NewestObjects:
    """Finds the newest objects of a resource."""

    def __init__(
        self,
        *,
        reader: SnapshotReader,
        listing: ObjectListing,
        slices: TimeSlices,
    ) -> None:
        self._reader = reader
        self._listing = listing
        self._slices = slices

    async def answer(
        self, request: Request, user: User, render: Callable[[Entry], bytes]
    ) -> Response:
        """Answer with an array of objects."""
        asked = V1Query.read(request.query_params.multi_items())
        wanted = Selection(
            verb="list",
            resource=asked.gvr,
            clusters=[asked.cluster] if asked.cluster else [],
            namespace=asked.namespace,
        )
        readable = await self._listing.find(user, wanted)
        resource = readable.known.key
        freshness = await self._listing.freshness(readable, asked.namespace)
        query = ListQuery(
            clusters=members_of(readable),
            resource=resource,
            namespace=asked.namespace or None,
            name=asked.name or None,
            labels=asked.labels or None,
            limit=_STEP,
            count=False,
        )
        rows = await self._find(query, asked.limit)
        return StreamingResponse(
            self._stream(request, resource, rows, render),
            headers={**FIXED_HEADERS, **incomplete_header(freshness)},
            media_type="application/json",
        )

    async def _find(self, query: ListQuery, limit: int) -> Iterator[_Row]:
        """Find the newest objects, newest first, without their bodies."""
        rows = _NewestRows(limit, self._slices)
        async for page in self._reader.pages(query):
            await rows.add(page.entries)
        return rows.newest()

    async def _stream(
        self,
        request: Request,
        resource: str,
        rows: Iterable[_Row],
        render: Callable[[Entry], bytes],
    ) -> AsyncGenerator[bytes]:
        """Yield the array in chunks; each is read when the client has received the one before."""
        before = b"["
        for part in _parts(rows):
            if await request.is_disconnected():
                return
            found = await asyncio.gather(
                *(self._reader.get(row.cluster, resource, row.namespace, row.name) for row in part)
            )
            # Objects that were deleted meanwhile are left out.
            if objects := b",".join(render(entry) for entry in found if entry is not None):
                yield before + objects
                before = b","
        yield b"]" if before == b"," else b"[]"


class _Row(NamedTuple):
    """One object of an answer, without its body."""

    created_at: str
    cluster: str
    namespace: str
    name: str
    size: int


_CREATED_AT: Final = attrgetter("created_at")


def _row(entry: Entry) -> _Row:
    created_at = _created_at(entry)
    return _Row(created_at, entry.cluster, entry.namespace, entry.name, len(entry.body))


class _NewestRows:
    """Keeps the newest of all added rows, up to a limit.

    Sorting all of them in one call would delay every other request, so each page is sorted alone,
    and the pages are merged while the answer is written.

    Args:
        limit: how many; 0 for all.
        slices: run the work.
    """

    def __init__(self, limit: int, slices: TimeSlices) -> None:
        self._limit = limit
        self._slices = slices
        self._pages: list[list[_Row]] = []
        self._count = 0
        self._size = 0

    async def add(self, entries: Sequence[Entry]) -> None:
        """Add the rows of a page.

        Raises:
            BadRequestProblem: the bodies of the answer are larger than `_MAX_BYTES`.
        """
        page: list[_Row] = []
        await self._slices.run(lambda entry: page.append(_row(entry)), entries)
        page.sort(key=_CREATED_AT, reverse=True)  # stable
        self._keep(page)
        if self._limit and (self._count > 2 * self._limit or self._size > _MAX_BYTES):
            await self._cut()
        if self._size > _MAX_BYTES:
            raise BadRequestProblem("more than 256 MiB: set a limit, a namespace or a cluster")

    def newest(self) -> Iterator[_Row]:
        """The rows, newest first; rows of the same time in the order in which they were added."""
        merged = heapq.merge(*self._pages, key=_CREATED_AT, reverse=True)
        return itertools.islice(merged, self._limit or None)

    async def _cut(self) -> None:
        """Drop the rows that are no longer among the newest."""
        kept: list[_Row] = []
        await self._slices.run(kept.append, self.newest())
        self._pages, self._count, self._size = [], 0, 0
        self._keep(kept)

    def _keep(self, page: list[_Row]) -> None:
        self._pages.append(page)
        self._count += len(page)
        self._size += sum(row.size for row in page)


def _parts(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    """Split the rows into parts whose bodies are in memory at a time."""
    part: list[_Row] = []
    size = 0
    for row in rows:
        if part and (size + row.size > SLICE or len(part) >= _STEP):
            yield part
            part, size = [], 0
        part.append(row)
        size += row.size
    if part:
        yield part


class _Created(msgspec.Struct, rename="camel"):
    creation_timestamp: str = ""


class _Dated(msgspec.Struct):
    metadata: _Created


_dated = msgspec.json.Decoder(_Dated)


def _created_at(entry: Entry) -> str:
    """RFC 3339 in UTC, as API servers write it, so that strings sort like times."""
    body = body_of(entry)
    try:
        return _dated.decode(body).metadata.creation_timestamp if body else ""
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ""


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
