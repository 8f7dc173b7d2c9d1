"""A client for a replay that sends its writes: it feeds the responses back into the replay.

Otherwise a run would wait for its own writes, which no watcher delivers here (rule R5).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from fleetbus.clusters.info import ClusterInfo
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.requests import ApiPath, Call, read_path
from fleetbus.kube.trees import read_tree
from fleetbus_proto.errors import InvalidName

OnWrite: TypeAlias = Callable[[str, ApiPath, Object | None], Awaitable[None]]
"""Called with the cluster and path of each write, and the object after it (None if removed)."""


class ReportingClient(KubeClient):
    """A client that reports its writes.

    Args:
        info: its cluster.
        on_write: called with each accepted write.
    """

    def __init__(self, info: ClusterInfo, on_write: OnWrite) -> None:
        super().__init__(info.config)
        self.cluster = info.name
        self._on_write = on_write

    async def request(self, call: Call) -> bytes:
        """Send one request; see `KubeClient.request`."""
        answer = await super().request(call)
        if call.method != "GET" and "dryRun" not in (call.query or {}):
            await self._report(call.method, call.path, answer)
        return answer

    async def _report(self, method: str, path: str, answer: bytes) -> None:
        try:
            place = read_path(path)
        except InvalidName:
            return
        tree = cast("Object", read_tree(answer))
        metadata = cast("Object", tree.get("metadata") or {})
        if method == "DELETE" and "deletionTimestamp" not in metadata:
            # A Status, or the object before its deletion; finalizers would add a deletionTimestamp.
            if place.name:
                await self._on_write(self.cluster, place, None)
        elif metadata.get("uid") and metadata.get("name"):
            await self._on_write(self.cluster, place._replace(name=str(metadata["name"])), tree)
