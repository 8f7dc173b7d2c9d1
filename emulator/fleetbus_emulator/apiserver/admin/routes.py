"""The routes of the admin endpoint.

GET    /clusters                      every cluster
GET    /clusters/C                    one
GET    /clusters/C/faults             its rules; POST adds one, DELETE removes all
GET    /clusters/C/faults/ID          one rule; DELETE removes it
POST   /clusters/C/compact            {"resourceVersion": "n"}, or all: older pages are too old, as
                                      after a compaction of etcd; with "watches": true older
                                      watches too, as when no watch cache reaches back
POST   /clusters/C/roll-back          {"resourceVersion": "n"}
POST   /clusters/C/swap-uid           {"uid": "..."}, or a new one
POST   /clusters/C/partition          {"how": "hang"}, see `Partition`
POST   /clusters/C/heal               ends the partition
POST   /clusters/C/stop, .../start    the API server
GET    /clusters/C/requests           ?since=NUMBER&limit=1000
GET    /clusters/C/truth              ?since=NUMBER&follow=true, a line of JSON per write
GET    /clusters/C/watches            those that are open
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import orjson
from aiohttp import ClientConnectionResetError, web

from fleetbus_emulator.apiserver.admin.documents import (
    cluster_info,
    encode,
    request_page,
    rule_document,
    watch_info,
)
from fleetbus_emulator.apiserver.faults import FieldError
from fleetbus_emulator.apiserver.faults.documents import action_from_json, camel
from fleetbus_emulator.apiserver.http.partition import Partition
from fleetbus_emulator.apiserver.storage.ground_truth import Forgotten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus_emulator.apiserver.cluster import Cluster
    from fleetbus_emulator.apiserver.faults import Rule
    from fleetbus_emulator.apiserver.http.server import ApiServers
    from fleetbus_emulator.apiserver.storage.ground_truth import GroundTruth

JsonObject = dict[str, Any]
DEFAULT_LIMIT, LARGEST_LIMIT = 1_000, 10_000
LONGEST_NUMBER = 20  # digits
JSON_LINES = "application/x-ndjson"


class Refusal(Exception):
    """A request that is refused.

    Attributes:
        status: The HTTP status.
        more: Further fields of the answer.
    """

    def __init__(self, status: HTTPStatus, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.more = more


def routes_of(servers: ApiServers) -> Iterable[web.RouteDef]:
    """The routes for some clusters."""
    admin = _Admin(servers)
    path = "/clusters/{cluster}"
    return [
        web.get("/clusters", admin.list_clusters),
        web.get(path, admin.get_cluster),
        web.get(f"{path}/faults", admin.list_faults),
        web.post(f"{path}/faults", admin.add_fault),
        web.delete(f"{path}/faults", admin.clear_faults),
        web.get(f"{path}/faults/{{id}}", admin.get_fault),
        web.delete(f"{path}/faults/{{id}}", admin.remove_fault),
        web.post(f"{path}/compact", admin.compact),
        web.post(f"{path}/roll-back", admin.roll_back),
        web.post(f"{path}/swap-uid", admin.swap_uid),
        web.post(f"{path}/partition", admin.partition),
        web.post(f"{path}/heal", admin.heal),
        web.post(f"{path}/stop", admin.stop),
        web.post(f"{path}/start", admin.start),
        web.get(f"{path}/requests", admin.list_requests),
        web.get(f"{path}/truth", admin.stream_truth),
        web.get(f"{path}/watches", admin.list_watches),
    ]


class _Admin:
    def __init__(self, servers: ApiServers) -> None:
        self._servers = servers

    # clusters -----------------------------------------------------------------------------------

    async def list_clusters(self, _request: web.Request) -> web.Response:
        names = self._servers.clusters
        return _answer({"clusters": [cluster_info(self._servers, name) for name in names]})

    async def get_cluster(self, request: web.Request) -> web.Response:
        return self._cluster_response(self._cluster(request))

    def _cluster_response(self, cluster: Cluster) -> web.Response:
        return _answer(cluster_info(self._servers, cluster.name))

    def _cluster(self, request: web.Request) -> Cluster:
        name = request.match_info["cluster"]
        cluster = self._servers.clusters.get(name)
        if cluster is None:
            names = ", ".join(self._servers.clusters)
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no cluster {name!r}, only {names}")
        return cluster

    # rules --------------------------------------------------------------------------------------

    async def list_faults(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        return _answer({"faults": [rule_document(cluster, rule) for rule in cluster.faults.list()]})

    async def add_fault(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        action, arguments = action_from_json(await read_body(request))
        try:
            rule = cluster.faults.add(action, **arguments)
        except FieldError as error:
            raise FieldError(camel(error.field), error.why) from None
        return _answer(rule_document(cluster, rule), status=HTTPStatus.CREATED)

    async def clear_faults(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        cluster.faults.clear()
        return self._cluster_response(cluster)

    async def get_fault(self, request: web.Request) -> web.Response:
        return _answer(rule_document(self._cluster(request), self._rule(request)))

    async def remove_fault(self, request: web.Request) -> web.Response:
        rule = self._rule(request)
        rule.remove()
        return _answer(rule_document(self._cluster(request), rule))

    def _rule(self, request: web.Request) -> Rule:
        cluster, number = self._cluster(request), request.match_info["id"]
        rule = cluster.faults.get(int(number)) if _is_number(number) else None
        if rule is None:
            message = f"cluster {cluster.name} has no rule {number}"
            raise Refusal(HTTPStatus.NOT_FOUND, message)
        return rule

    # the whole cluster --------------------------------------------------------------------------

    async def compact(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        document = await read_body(request, "resourceVersion", "watches")
        watches = document.get("watches", False)
        if not isinstance(watches, bool):
            raise FieldError("watches", "must be true or false")
        cluster.compact(_revision(document), watches=watches)
        return self._cluster_response(cluster)

    async def roll_back(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        revision = _revision(await read_body(request, "resourceVersion"))
        if revision is None:
            raise FieldError("resourceVersion", "is needed")
        try:
            cluster.roll_back(revision)
        except ValueError as error:
            raise FieldError("resourceVersion", str(error)) from None
        return self._cluster_response(cluster)

    async def swap_uid(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        uid = (await read_body(request, "uid")).get("uid")
        if uid is not None and (not isinstance(uid, str) or not uid):
            raise FieldError("uid", "must be a string")
        try:
            cluster.swap_uid(uid)
        except ValueError as error:
            raise Refusal(HTTPStatus.CONFLICT, str(error)) from None
        return self._cluster_response(cluster)

    async def partition(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        how = (await read_body(request, "how")).get("how", Partition.HANG)
        if how not in list(Partition):
            raise FieldError("how", f"must be one of {', '.join(Partition)}")
        await self._servers.partition(cluster.name, Partition(how))
        return self._cluster_response(cluster)

    async def heal(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        await _read_no_fields(request)
        await self._servers.heal(cluster.name)
        return self._cluster_response(cluster)

    async def stop(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        await _read_no_fields(request)
        await self._servers.stop(cluster.name)
        return self._cluster_response(cluster)

    async def start(self, request: web.Request) -> web.Response:
        cluster = self._cluster(request)
        await _read_no_fields(request)
        await self._servers.start(cluster.name)
        return self._cluster_response(cluster)

    # what happened ------------------------------------------------------------------------------

    async def list_requests(self, request: web.Request) -> web.Response:
        since, limit = _number(request, "since", 0), _number(request, "limit", DEFAULT_LIMIT)
        if limit > LARGEST_LIMIT:
            raise FieldError("limit", f"must be at most {LARGEST_LIMIT}")
        return _answer(request_page(self._cluster(request), since, limit))

    async def list_watches(self, request: web.Request) -> web.Response:
        watches = self._cluster(request).list_watches()
        return _answer({"watches": [watch_info(watch) for watch in watches]})

    async def stream_truth(self, request: web.Request) -> web.StreamResponse:
        truth = self._cluster(request).truth
        since = _number(request, "since", 0)
        follow = request.query.get("follow", "false")
        if follow not in ("true", "false"):
            raise FieldError("follow", "must be true or false")
        try:
            truth.after(since, 1)
        except Forgotten as error:
            raise Refusal(HTTPStatus.GONE, str(error), oldest=error.oldest) from None
        response = web.StreamResponse(headers={"Content-Type": JSON_LINES})
        await response.prepare(request)
        try:
            await _send_truth(response, truth, since, follow=follow == "true")
        except Forgotten:  # the client was too slow: let it see that something is missing
            if request.transport is not None:
                request.transport.abort()
        except ClientConnectionResetError:
            pass  # the client has disconnected
        return response


async def _send_truth(
    response: web.StreamResponse, truth: GroundTruth, since: int, *, follow: bool
) -> None:
    more = asyncio.Event()
    truth.listeners.add(more.set)
    try:
        while True:
            more.clear()
            commits = truth.after(since)
            if commits:
                since = commits[-1].number
                await response.write(b"".join(commit.to_json() + b"\n" for commit in commits))
            elif follow:
                await more.wait()
            else:
                break
    finally:
        truth.listeners.discard(more.set)
    await response.write_eof()


def _answer(document: Any, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    return web.json_response(body=encode(document), status=status)


async def read_body(request: web.Request, *fields: str) -> JsonObject:
    """The body, a JSON object; nothing is an empty one. Names that are not known are refused."""
    raw = await request.read()
    try:
        content: Any = orjson.loads(raw) if raw.strip() else {}
    except orjson.JSONDecodeError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
    document = cast("JsonObject", content)
    for name in document if fields else ():
        if name not in fields:
            raise FieldError(name, f"is unknown; known is {', '.join(fields)}")
    return document


async def _read_no_fields(request: web.Request) -> None:
    for name in await read_body(request):
        raise FieldError(name, "is unknown; this takes no fields")


def _revision(document: JsonObject) -> int | None:
    """The resourceVersion of a document, a string of digits or a number; None if missing."""
    version = document.get("resourceVersion")
    if version is None:
        return None
    if isinstance(version, bool) or not _is_number(str(version)):
        raise FieldError("resourceVersion", "must be a revision, like 1234")
    return int(version)


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not _is_number(text):
        raise FieldError(name, "must be a whole number, not negative")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= LONGEST_NUMBER
