"""The client of the admin endpoint, for other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote

import aiohttp
import orjson

from fleetbus_emulator.apiserver.admin.documents import (
    ClusterInfo,
    RequestPage,
    RuleInfo,
    WatchInfo,
    decode,
    decode_rule,
)
from fleetbus_emulator.apiserver.faults.documents import RULE_FIELDS, action_to_json
from fleetbus_emulator.apiserver.http.partition import Partition
from fleetbus_emulator.apiserver.storage.ground_truth import commit_from_json

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Mapping

    from fleetbus_emulator.apiserver.faults import Action
    from fleetbus_emulator.apiserver.storage.ground_truth import Commit

JsonObject = dict[str, Any]
FIRST_ERROR = 400
SECONDS_TO_CONNECT = 5.0
SECONDS_TO_ANSWER = 30.0


class AdminError(Exception):
    """The endpoint refused.

    Attributes:
        status: The HTTP status: 400 wrong, 404 unknown, 409 impossible, 410 forgotten.
        field: The field that is wrong, as JSON has it; empty if it is not one field.
        more: Further fields of the answer, like `oldest` with 410.
    """

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        nobody = f"HTTP {status} without a reason; is this an admin endpoint?"
        super().__init__(str(document.get("error") or nobody))
        self.status = status
        self.field = str(document.get("field", ""))
        self.more = {k: v for k, v in document.items() if k not in ("error", "field")}


class AdminClient:
    """Breaks, mends and questions the clusters of one process; an async context manager.

    Methods raise AdminError for refusals, and aiohttp.ClientError without an answer.

    Args:
        url: The base URL of the endpoint.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=SECONDS_TO_CONNECT, sock_read=SECONDS_TO_ANSWER
        )
        self._session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *_: object) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # clusters -----------------------------------------------------------------------------------

    async def clusters(self) -> list[ClusterInfo]:
        """All clusters."""
        document = await self._ask("GET", "/clusters")
        return [decode(ClusterInfo, entry) for entry in document["clusters"]]

    async def cluster(self, cluster: str) -> ClusterInfo:
        """One cluster."""
        return decode(ClusterInfo, await self._ask("GET", _path(cluster)))

    async def compact(
        self, cluster: str, resource_version: int | None = None, *, watches: bool = True
    ) -> ClusterInfo:
        """Forget the past up to a revision (None: all); see `Cluster.compact`."""
        body: JsonObject = {"watches": watches}
        if resource_version is not None:
            body["resourceVersion"] = str(resource_version)
        return await self._change(cluster, "compact", body)

    async def roll_back(self, cluster: str, resource_version: int) -> ClusterInfo:
        """Return to a past state and revision, as after restoring etcd from a backup."""
        body = {"resourceVersion": str(resource_version)}
        return await self._change(cluster, "roll-back", body)

    async def swap_uid(self, cluster: str, uid: str | None = None) -> ClusterInfo:
        """Become another cluster behind the same address."""
        return await self._change(cluster, "swap-uid", {} if uid is None else {"uid": uid})

    async def partition(self, cluster: str, how: Partition = Partition.HANG) -> ClusterInfo:
        """Cut a cluster off."""
        return await self._change(cluster, "partition", {"how": how.value})

    async def heal(self, cluster: str) -> ClusterInfo:
        """End the partition of a cluster; rules stay."""
        return await self._change(cluster, "heal")

    async def stop(self, cluster: str) -> ClusterInfo:
        """Stop the API server of a cluster."""
        return await self._change(cluster, "stop")

    async def start(self, cluster: str) -> ClusterInfo:
        """Start the API server of a cluster again."""
        return await self._change(cluster, "start")

    async def _change(self, cluster: str, verb: str, body: JsonObject | None = None) -> ClusterInfo:
        return decode(ClusterInfo, await self._ask("POST", _path(cluster, verb), body or {}))

    # rules --------------------------------------------------------------------------------------

    async def add_fault(
        self,
        cluster: str,
        action: Action,
        *,
        verb: str | None = None,
        group: str | None = None,
        resource: str | None = None,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        user_agent: str | None = None,
        token: str | None = None,
        count: int | None = None,
        skip: int | None = None,
        nth: int | None = None,
        probability: float | None = None,
    ) -> RuleInfo:
        """Add a rule; the arguments are those of `Faults.add`."""
        arguments = {
            "verb": verb,
            "group": group,
            "resource": resource,
            "namespace": namespace,
            "name": name,
            "subresource": subresource,
            "user_agent": user_agent,
            "token": token,
            "count": count,
            "skip": skip,
            "nth": nth,
            "probability": probability,
        }
        fields = {field: arguments[kind.name] for field, kind in RULE_FIELDS.items()}
        added = await self.add_fault_document(cluster, {**action_to_json(action), **fields})
        return decode_rule(added)

    async def add_fault_document(self, cluster: str, document: JsonObject) -> JsonObject:
        """Add a rule given as a JSON document; returns its document."""
        return await self._ask("POST", _path(cluster, "faults"), document)

    async def faults(self, cluster: str) -> list[RuleInfo]:
        """The rules that were not removed, the oldest first."""
        return [decode_rule(document) for document in await self.fault_documents(cluster)]

    async def fault_documents(self, cluster: str) -> list[JsonObject]:
        """The rules as JSON documents."""
        document = await self._ask("GET", _path(cluster, "faults"))
        return list(document["faults"])

    async def remove_fault(self, cluster: str, rule_id: int) -> RuleInfo:
        """Remove a rule; answers what became of it."""
        return decode_rule(await self._ask("DELETE", _path(cluster, "faults", str(rule_id))))

    async def clear_faults(self, cluster: str) -> ClusterInfo:
        """Remove all rules."""
        return decode(ClusterInfo, await self._ask("DELETE", _path(cluster, "faults")))

    # what happened ------------------------------------------------------------------------------

    async def requests(self, cluster: str, *, since: int = 0, limit: int = 1_000) -> RequestPage:
        """The requests behind a number, and the oldest number that is known."""
        path = f"{_path(cluster, 'requests')}?since={since}&limit={limit}"
        return decode(RequestPage, await self._ask("GET", path))

    async def watches(self, cluster: str) -> list[WatchInfo]:
        """The watches that are open, the oldest first."""
        document = await self._ask("GET", _path(cluster, "watches"))
        return [decode(WatchInfo, entry) for entry in document["watches"]]

    async def truth(
        self, cluster: str, *, since: int = 0, follow: bool = False
    ) -> AsyncGenerator[Commit]:
        """Every committed write after a number, up to now or without end.

        Raises:
            AdminError: 410, some of them are forgotten.
        """
        query = f"?since={since}&follow={'true' if follow else 'false'}"
        url = f"{self._url}{_path(cluster, 'truth')}{query}"
        forever = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS_TO_CONNECT)
        async with self._opened().get(url, timeout=forever) as answer:
            if answer.status >= FIRST_ERROR:
                raise AdminError(answer.status, _document(await answer.read()))
            async for line in answer.content:
                yield commit_from_json(line)

    async def change(self, cluster: str, verb: str, body: JsonObject) -> JsonObject:
        """The answer of a route that the process added to its endpoint."""
        return await self._ask("POST", _path(cluster, verb), body)

    async def stream(
        self, cluster: str, verb: str, body: JsonObject | AsyncIterable[bytes]
    ) -> AsyncGenerator[JsonObject]:
        """The lines that a route answers which the process added to its endpoint.

        The body may be lines of JSON, too.
        """
        url = self._url + _path(cluster, verb)
        is_document = isinstance(body, dict)
        headers = {"Content-Type": "application/json" if is_document else "application/x-ndjson"}
        data = orjson.dumps(body) if is_document else body
        async with self._opened().post(url, data=data, headers=headers) as answer:
            if answer.status >= FIRST_ERROR:
                raise AdminError(answer.status, _document(await answer.read()))
            async for line in answer.content:
                yield _document(line)

    # HTTP ---------------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        data = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        url = self._url + path
        async with self._opened().request(method, url, data=data, headers=headers) as answer:
            document = _document(await answer.read())
            if answer.status >= FIRST_ERROR:
                raise AdminError(answer.status, document)
            return document

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("AdminClient is used outside of its context")
        return self._session


def _path(cluster: str, *segments: str) -> str:
    return "/".join(["/clusters", *(quote(segment, safe="") for segment in (cluster, *segments))])


def _document(body: bytes) -> JsonObject:
    try:
        content: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    if not isinstance(content, dict):
        return {}
    return cast("JsonObject", content)
