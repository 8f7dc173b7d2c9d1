"""Clients of a replay that sends its writes: what an API server answers stands in the replay, too.

Without that, a run would wait for its own writes, which no watcher brings (rule R5).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TypeAlias, cast

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube.client import REQUEST_TIMEOUT, KubeClient, Object
from fleetbus.kube.requests import ApiPath, read_path
from fleetbus.kube.trees import read_tree
from fleetbus_proto.errors import InvalidName

OnWrite: TypeAlias = Callable[[str, ApiPath, Object | None], Awaitable[None]]
"""Told the cluster and the place of each write, and the object after it; None if it is gone."""


class ReportingClient(KubeClient):
    """A client that tells of its writes.

    Args:
        info: its cluster.
        tell: told of each write that was accepted.
    """

    def __init__(self, info: ClusterInfo, tell: OnWrite) -> None:
        super().__init__(info.config)
        self.cluster = info.name
        self._tell = tell

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        within: timedelta = REQUEST_TIMEOUT,
    ) -> bytes:
        """Send one request; see `KubeClient.request`."""
        answer = await super().request(
            method, path, query=query, body=body, content_type=content_type, within=within
        )
        if method != "GET" and "dryRun" not in (query or {}):
            await self._tell_of(method, path, answer)
        return answer

    async def _tell_of(self, method: str, path: str, answer: bytes) -> None:
        try:
            place = read_path(path)
        except InvalidName:
            return
        tree = cast("Object", read_tree(answer))
        metadata = cast("Object", tree.get("metadata") or {})
        if method == "DELETE" and "deletionTimestamp" not in metadata:
            # A Status, or the object as it was; with finalizers it would say that it is leaving.
            if place.name:
                await self._tell(self.cluster, place, None)
        elif metadata.get("uid") and metadata.get("name"):
            await self._tell(self.cluster, place._replace(name=str(metadata["name"])), tree)
