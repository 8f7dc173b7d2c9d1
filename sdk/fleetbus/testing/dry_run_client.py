"""Clients for dry runs: reads are served from a replay, writes are recorded and not sent.

A recorded write takes effect in the replay: the resulting object is put into its snapshot and
triggers the controllers that watch it, so they continue as if it had been sent. What an API server
would add (defaults, generated names, changes by webhooks) is missing, and an apply is merged
without checking field ownership.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, cast

import jsonpatch
import orjson

from fleetbus import errors
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import ApiPath, Call, read_path
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key

if TYPE_CHECKING:
    import aiohttp

    from fleetbus.clusters.info import ClusterInfo

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_APPLY: Final = "application/apply-patch+yaml"
_PARTS: Final = ("status", "scale")


Feed: TypeAlias = Callable[[Sequence[Event]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DryRunWrite:
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


class DryRunFleet:
    """The clusters of a replay, as their clients see them.

    Args:
        reader: the snapshot of the replay.
        on_write: called with each write.
        feed: applies and routes the event that a write would have caused.
    """

    def __init__(
        self, reader: SnapshotReader, on_write: Callable[[DryRunWrite], None], *, feed: Feed
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
        return DryRunClient(info.name, self)

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

    async def write(self, cluster: str, place: ApiPath, verb: str, body: Any) -> Object | None:
        """Return the response of a server to a write; None for a bare success status.

        Raises:
            KubeError: an API server would reject it.
        """
        if verb == "create" and not place.subresource:
            place = place._replace(name=_name_of(body))
        before = await self.read(cluster, place)
        after = self._result_of(verb, place, before, body)
        if before is not None and after is not None and _is_same(before, after):
            return before
        version = self._next_version(cluster, await self._held_version(cluster, place))
        if after is not None:
            after["metadata"]["resourceVersion"] = version
        self._on_write(
            DryRunWrite(
                cluster=cluster,
                verb=verb,
                resource="/".join(filter(None, (str(place.resource), place.subresource))),
                namespace=place.namespace,
                name=place.name,
                before=before,
                after=after,
            )
        )
        await self._feed([self._event(cluster, place, version, before, after)])
        if after is None and before is not None and verb != "delete":
            # Removing the last finalizer returns the object as it was when it was deleted.
            return merged(before, {"metadata": {"finalizers": None, "resourceVersion": version}})
        return after

    async def sent(self, cluster: str, place: ApiPath, after: Object | None) -> None:
        """Feed a write that an API server has done; None if it removed the object."""
        before = await self.read(cluster, place)
        if after is None:
            version = self._next_version(cluster, await self._held_version(cluster, place))
        else:
            version = str(after["metadata"]["resourceVersion"])
        if before is not None or after is not None:
            await self._feed([self._event(cluster, place, version, before, after)])

    def _result_of(
        self, verb: str, place: ApiPath, before: Object | None, body: Any
    ) -> Object | None:
        if verb == "create":
            if before is not None:
                raise errors.AlreadyExists(409, "AlreadyExists", f"{place.name!r} already exists")
            return self._made(place, body)
        if before is None:
            if verb == "apply":
                return self._made(place, body)
            raise _not_found(place)
        if verb == "delete":
            options = cast("Object", body or {})
            _check_preconditions(before, cast("Object", options.get("preconditions") or {}))
            return _deleted(before)
        changed = _changed(verb, before, body)
        _check_preconditions(before, changed["metadata"])
        if place.subresource in _PARTS:
            part = "status" if place.subresource == "status" else "spec"
            changed = {**before, part: changed.get(part)}
        # A server ignores changes of these.
        kept = {k: v for k, v in before["metadata"].items() if k in ("uid", "creationTimestamp")}
        metadata: Object = {**cast("Object", changed["metadata"]), **kept}
        if metadata.get("deletionTimestamp") and not metadata.get("finalizers"):
            return None
        return {**changed, "metadata": metadata}

    def _made(self, place: ApiPath, body: Object) -> Object:
        made = copy.deepcopy(body)
        made["metadata"] |= {
            "name": place.name,
            "uid": f"dry-run-{next(self._serial)}",
            "creationTimestamp": utc_now(),
        }
        if place.namespace:
            made["metadata"]["namespace"] = place.namespace
        return made

    async def _held_version(self, cluster: str, place: ApiPath) -> str:
        """Return the stored version of the object or tombstone; only newer applies (rule P2)."""
        name = (place.namespace, place.name)
        held = await self._reader.versions(cluster, place.resource.key, [name])
        return held[name].resource_version if name in held else ""

    def _next_version(self, cluster: str, held: str) -> str:
        """Return the cluster's newest version, or the object's own plus one if that is newer."""
        newest = self._last[cluster].resource_version if cluster in self._last else "1"
        return newest if version_key(newest) > version_key(held) else str(int(held) + 1)

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


class DryRunClient(KubeClient):
    """A client of a replay; every call goes through `request`."""

    def __init__(self, name: str, dry_run: DryRunFleet) -> None:
        super().__init__(None)
        self.cluster = name
        self.shows_marks = True
        self._fleet = dry_run

    async def request(self, call: Call) -> bytes:
        """Serve the request from the replay."""
        query = call.query or {}
        try:
            place = read_path(call.path)
        except InvalidName:
            return orjson.dumps(self._elsewhere(call.path))
        if call.method == "GET":
            return orjson.dumps(await self._read(place, query))
        if call.method == "DELETE" and not place.name:
            _refuse("a replay does not support deletecollection")
        verb = "apply" if call.content_type == _APPLY else _VERBS[call.method]
        parsed: Any = orjson.loads(call.body) if call.body else None
        if query.get("dryRun"):
            _refuse("a replay does not support dryRun")
        answer = await self._fleet.write(self.cluster, place, verb, parsed)
        return orjson.dumps(answer or {"kind": "Status", "status": "Success"})

    async def stream(self, *_: object, **_more: object) -> aiohttp.ClientResponse:
        """Raise: nothing is sent."""
        _refuse("a replay has no API server")

    async def _read(self, place: ApiPath, query: Mapping[str, str]) -> Object:
        if not place.name:
            return await self._fleet.list(self.cluster, place, query)
        found = await self._fleet.read(self.cluster, place)
        if found is None:
            raise _not_found(place)
        return found

    def _elsewhere(self, path: str) -> Object:
        if path == "/version":
            return {"gitVersion": ""}
        if path.count("/") >= 2:  # noqa: PLR2004 -- /api/v1, /apis/apps/v1
            return self._fleet.discovery(path)
        return _refuse("a replay has no API server")


def _not_found(place: ApiPath) -> errors.NotFound:
    """Like a server: without the details a 404 does not prove the object is gone (rule R6)."""
    details: Object = {"name": place.name, "kind": place.resource.plural}
    return errors.NotFound(404, "NotFound", f"{place.name!r} not found", details)


def _changed(verb: str, before: Object, body: Any) -> Object:
    if verb == "update":
        return copy.deepcopy(cast("Object", body))
    if isinstance(body, list):
        try:
            return jsonpatch.apply_patch(before, cast("list[Any]", body))
        except jsonpatch.JsonPatchException as e:
            raise errors.Invalid(422, "Invalid", f"the JSON patch does not apply: {e}") from e
    return cast("Object", merged(before, body))


def _deleted(before: Object) -> Object | None:
    if not before["metadata"].get("finalizers"):
        return None
    return merged(before, {"metadata": {"deletionTimestamp": utc_now()}})


def _check_preconditions(before: Object, wanted: Mapping[str, Any]) -> None:
    for field in ("uid", "resourceVersion"):
        if wanted.get(field) and wanted[field] != before["metadata"].get(field):
            raise errors.Conflict(409, "Conflict", f"precondition failed: {field} differs")


def _is_same(one: Object, other: Object) -> bool:
    return _without_version(one) == _without_version(other)


def _without_version(obj: Object) -> Object:
    own = ("resourceVersion", "managedFields")
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k not in own}}


def _name_of(body: Object) -> str:
    metadata = body["metadata"]
    return str(metadata.get("name") or f"{metadata.get('generateName', '')}dry-run")


def _order(event: Event) -> tuple[int, tuple[int, str]]:
    return event.incarnation.number, version_key(event.resource_version)


def _refuse(why: str) -> Never:
    raise errors.Unreachable(0, "Replay", why)
