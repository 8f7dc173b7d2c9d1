"""Clients of a replay: reads are served from its snapshot, writes are recorded and not sent.

A recorded write takes effect in the replay: the resulting object is put into its snapshot and
triggers the controllers that watch it, so they continue as if it had been sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never, TypeAlias, cast

import orjson

from fleetbus.errors import Unreachable
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.dry_run import DryRunClient, Write, answer_of, content_of
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import ApiPath, Call
from fleetbus.kube.responses import Answer
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key

if TYPE_CHECKING:
    from fleetbus.clusters.info import ClusterInfo
    from fleetbus.kube.connection.response import Response

Feed: TypeAlias = Callable[[Sequence[Event]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ReplayWrite:
    """A write that was not sent."""

    cluster: str
    verb: str
    """`create`, `update`, `patch`, `apply` or `delete`."""
    resource: str
    """Like `apps/v1/deployments`; followed by `/status` for a subresource."""
    namespace: str
    name: str
    before: Object | None
    after: Object | None
    """None if the object would be gone."""


class ReplayFleet:
    """The clusters of a replay, as their clients see them.

    Args:
        reader: the snapshot of the replay.
        on_write: called with each write.
        feed: applies and routes the event that a write would have caused.
    """

    def __init__(
        self, reader: SnapshotReader, on_write: Callable[[ReplayWrite], None], *, feed: Feed
    ) -> None:
        self._reader = reader
        self._on_write = on_write
        self._feed = feed
        self._last: dict[str, Event] = {}
        """The event with the newest resourceVersion of each cluster."""
        self._kinds: dict[tuple[str, str], str] = {}
        self._serial = itertools.count(1)

    def learn(self, events: Iterable[Event]) -> None:
        """Learn kinds and the newest resourceVersions from replayed events."""
        for event in events:
            self._kinds[event.resource_key, event.version] = event.kind
            last = self._last.get(event.cluster)
            if last is None or _order(event) > _order(last):
                self._last[event.cluster] = event

    def client(self, info: ClusterInfo) -> KubeClient:
        """Make the client of a cluster; it has no credentials and opens no connection."""
        return ReplayClient(info.name, self)

    # --- reads ----------------------------------------------------------------------------------

    async def read(self, cluster: str, place: ApiPath) -> Object | None:
        """Read an object from the snapshot of the replay."""
        entry = await self._reader.get(cluster, place.resource.key, place.namespace, place.name)
        return cast("Object", read_tree(entry.body)) if entry and entry.body else None

    async def list(self, cluster: str, place: ApiPath, query: Mapping[str, str]) -> Object:
        """List a collection in one page; field selectors are not supported."""
        if query.get("fieldSelector"):
            _refuse("a replay does not support field selectors")
        page = await self._reader.list(
            ListQuery(
                clusters=(cluster,),
                resource=place.resource.key,
                namespace=place.namespace or None,
                labels=LabelSelector.parse(query.get("labelSelector", "")),
                count=False,
            )
        )
        items = [read_tree(entry.body) for entry in page.entries if entry.body]
        kind = self._kinds.get((place.resource.key, place.resource.version), "")
        version = self._last[cluster].resource_version if cluster in self._last else "1"
        return {
            "apiVersion": place.resource.api_version,
            "kind": f"{kind}List",
            "metadata": {"resourceVersion": version},
            "items": items,
        }

    # --- writes ---------------------------------------------------------------------------------

    async def write(self, cluster: str, write: Write) -> Object | None:
        """Return the response of a server to a write; None for a bare success status.

        Raises:
            KubeError: an API server would reject it.
        """
        place = write.place
        before = await self.read(cluster, place)
        new_uid = "" if before else f"dry-run-{next(self._serial)}"
        after = write.result(before, new_uid=new_uid)
        if before is not None and after is not None and content_of(before) == content_of(after):
            return before
        version = self._next_version(cluster, await self._stored_version(cluster, place))
        if after is not None:
            after["metadata"]["resourceVersion"] = version
        self._on_write(
            ReplayWrite(
                cluster=cluster,
                verb=write.verb,
                resource="/".join(filter(None, (str(place.resource), place.subresource))),
                namespace=place.namespace,
                name=place.name,
                before=before,
                after=after,
            )
        )
        await self._feed([self._event(cluster, place, version, before, after)])
        if after is None and before is not None and write.verb != "delete":
            # Removing the last finalizer returns the object as it was when it was deleted.
            return merged(before, {"metadata": {"finalizers": None, "resourceVersion": version}})
        return after

    async def sent(self, cluster: str, place: ApiPath, after: Object | None) -> None:
        """Feed a write that an API server has done; None if it removed the object."""
        before = await self.read(cluster, place)
        if after is None:
            version = self._next_version(cluster, await self._stored_version(cluster, place))
        else:
            version = str(after["metadata"]["resourceVersion"])
        if before is not None or after is not None:
            await self._feed([self._event(cluster, place, version, before, after)])

    async def _stored_version(self, cluster: str, place: ApiPath) -> str:
        """Return the stored version of the object or tombstone; only newer applies (rule P2)."""
        name = (place.namespace, place.name)
        stored = await self._reader.versions(cluster, place.resource.key, [name])
        return stored[name].resource_version if name in stored else ""

    def _next_version(self, cluster: str, stored: str) -> str:
        """Return the cluster's newest version, or the object's own plus one if that is newer."""
        newest = self._last[cluster].resource_version if cluster in self._last else "1"
        return newest if version_key(newest) > version_key(stored) else str(int(stored) + 1)

    def _event(
        self,
        cluster: str,
        place: ApiPath,
        version: str,
        before: Object | None,
        after: Object | None,
    ) -> Event:
        obj = after or before or {}
        last = self._last.get(cluster)
        verb = Verb.DELETED if after is None else Verb.MODIFIED if before else Verb.ADDED
        return Event(
            cluster=cluster,
            incarnation=last.incarnation if last else Incarnation(1, ""),
            group=place.resource.group,
            version=place.resource.version,
            resource=place.resource.plural,
            kind=str(obj.get("kind", "")),
            namespace=place.namespace,
            name=place.name,
            uid=str(obj.get("metadata", {}).get("uid", "")),
            resource_version=version,
            verb=verb,
            epoch=last.epoch if last else Rank("1", 1),
            observed_at=utc_now(),
            object=orjson.dumps(obj),
        )

    def discovery(self, path: str) -> Object:
        """Return the resources of a group and version that the replay has shown."""
        parts = path.strip("/").split("/")
        group, version = ("core", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": "/".join(parts[1:]),
            "resources": [
                {"name": key.partition("/")[2], "kind": kind, "namespaced": True, "verbs": ["get"]}
                for (key, of), kind in self._kinds.items()
                if key.partition("/")[0] == group and of == version
            ],
        }


class ReplayClient(DryRunClient):
    """A client of a replay; every call goes through `exchange`."""

    def __init__(self, name: str, fleet: ReplayFleet) -> None:
        super().__init__(None)
        self.cluster = name
        self.shows_marks = True
        self._fleet = fleet

    async def read_object(self, call: Call, place: ApiPath) -> Object | None:
        """Read from the snapshot of the replay."""
        del call
        return await self._fleet.read(self.cluster, place)

    async def read_list(self, call: Call, place: ApiPath) -> Object:
        """Likewise."""
        return await self._fleet.list(self.cluster, place, call.query or {})

    async def read_other(self, call: Call) -> Answer:
        """Answer discovery from what the replay has shown."""
        if call.path == "/version":
            return answer_of({"gitVersion": ""})
        if call.path.count("/") >= 2:  # noqa: PLR2004 -- /api/v1, /apis/apps/v1
            return answer_of(self._fleet.discovery(call.path))
        return _refuse("a replay has no API server")

    async def take_write(self, call: Call, write: Write) -> Object:
        """Record it, and go on as if it had been sent."""
        if write.verb == "delete" and not write.place.name:
            _refuse("a replay does not support deletecollection")
        if (call.query or {}).get("dryRun"):
            _refuse("a replay does not support dryRun")
        answer = await self._fleet.write(self.cluster, write)
        return answer or {"kind": "Status", "status": "Success"}

    async def stream(self, *_: object, **_more: object) -> Response:
        """Raise: nothing is sent."""
        _refuse("a replay has no API server")


def _order(event: Event) -> tuple[int, tuple[int, str]]:
    return event.incarnation.number, version_key(event.resource_version)


def _refuse(why: str) -> Never:
    raise Unreachable(0, "Replay", why)
