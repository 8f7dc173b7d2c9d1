"""API servers that are not there: reads are answered from a replay, writes are noted, not sent.

A write that was not sent still counts in the replay: the object it would have made stands in its
snapshot, and wakes whoever watches it, so that a controller goes on as if it had been done. What an
API server would add to it (defaults, generated names, what webhooks do) is missing, and an apply is
merged without asking who owns a field.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Never, TypeAlias, cast

import jsonpatch
import orjson

from fleetbus import errors
from fleetbus.kube.client import REQUEST_TIMEOUT, KubeClient, Object
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import ApiPath, read_path
from fleetbus.kube.selectors import LabelSelector
from fleetbus.kube.trees import read_tree
from fleetbus.process.clock import utc_now
from fleetbus.snapshot.reads.reader import ListQuery, SnapshotReader
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event, Incarnation, Rank
from fleetbus_proto.subjects import Verb
from fleetbus_proto.versions import version_key

if TYPE_CHECKING:
    import aiohttp

    from fleetbus.clusters.info import ClusterInfo

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_JSON_PATCH: Final = "application/json-patch+json"
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
    """Like `apps/v1/deployments`; with `/status` behind it for a part of the object."""
    namespace: str
    name: str
    before: Object | None
    after: Object | None
    """None for an object that would be gone."""


class DryRunFleet:
    """All clusters of a replay, as their clients see them.

    Args:
        reader: the snapshot of the replay.
        note: told of each write.
    """

    def __init__(self, reader: SnapshotReader, note: Callable[[DryRunWrite], None]) -> None:
        self._reader = reader
        self._note = note
        self._feed: Feed = _to_nobody
        self._last: dict[str, Event] = {}
        """Of each cluster the event with the newest resourceVersion."""
        self._kinds: dict[tuple[str, str], str] = {}
        self._serial = itertools.count(1)

    def learn(self, events: Iterable[Event]) -> None:
        """Take note of what is replayed: kinds, and how far each cluster is."""
        for event in events:
            self._kinds[event.resource_key, event.version] = event.kind
            last = self._last.get(event.cluster)
            if last is None or _order(event) > _order(last):
                self._last[event.cluster] = event

    def tell(self, feed: Feed) -> None:
        """Apply and route by `feed` what a write would have caused."""
        self._feed = feed

    def client(self, info: ClusterInfo) -> KubeClient:
        """The client of a cluster; it has no credentials and opens no connection."""
        return DryRunClient(info.name, self)

    # --- reads ----------------------------------------------------------------------------------

    async def read(self, cluster: str, place: ApiPath) -> Object | None:
        """An object, as the replay has it."""
        entry = await self._reader.get(cluster, place.resource.key, place.namespace, place.name)
        return cast("Object", read_tree(entry.body)) if entry and entry.body else None

    async def list(self, cluster: str, place: ApiPath, query: Mapping[str, str]) -> Object:
        """The objects of a collection, whole; field selectors are not understood."""
        if query.get("fieldSelector"):
            _refuse("a replay cannot select by fields")
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
        """What a server would answer to a write; None if it would only say that it is done.

        Raises:
            KubeError: an API server would refuse it.
        """
        if verb == "create" and not place.subresource:
            place = place._replace(name=_name_of(body))
        before = await self.read(cluster, place)
        after = self._outcome(verb, place, before, body)
        if before is not None and after is not None and _is_same(before, after):
            return before
        version = self._next_version(cluster, await self._held_version(cluster, place))
        if after is not None:
            after["metadata"]["resourceVersion"] = version
        self._note(
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
            # Who takes the last finalizer away is answered with the object as it went.
            return merged(before, {"metadata": {"finalizers": None, "resourceVersion": version}})
        return after

    async def sent(self, cluster: str, place: ApiPath, after: Object | None) -> None:
        """A write that an API server has done; None if the object is gone by it."""
        before = await self.read(cluster, place)
        if after is None:
            version = self._next_version(cluster, await self._held_version(cluster, place))
        else:
            version = str(after["metadata"]["resourceVersion"])
        if before is not None or after is not None:
            await self._feed([self._event(cluster, place, version, before, after)])

    def _outcome(
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
            told = cast("Object", body or {})
            _check_preconditions(before, cast("Object", told.get("preconditions") or {}))
            return _deleted(before)
        changed = _changed(verb, before, body)
        _check_preconditions(before, changed["metadata"])
        if place.subresource in _PARTS:
            part = "status" if place.subresource == "status" else "spec"
            changed = {**before, part: changed.get(part)}
        # What the server keeps to itself, whatever was sent.
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
        """The version of the object, or of its deletion: what is not newer changes nothing (P2)."""
        name = (place.namespace, place.name)
        held = await self._reader.versions(cluster, place.resource.key, [name])
        return held[name].resource_version if name in held else ""

    def _next_version(self, cluster: str, held: str) -> str:
        """The cluster's newest version: of this object newer than its own, and soon overtaken."""
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
        """The resources of a group and version, as far as the replay has shown them."""
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
    """The one point at which all calls of a client meet is its request."""

    def __init__(self, name: str, dry_run: DryRunFleet) -> None:
        super().__init__(None)
        self.cluster = name
        self.shows_marks = True
        self._fleet = dry_run

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
        """Answer from the replay."""
        del within
        try:
            place = read_path(path)
        except InvalidName:
            return orjson.dumps(self._elsewhere(path))
        if method == "GET":
            return orjson.dumps(await self._read(place, query or {}))
        if method == "DELETE" and not place.name:
            _refuse("a replay deletes no collections")
        verb = "apply" if content_type == _APPLY else _VERBS[method]
        told: Any = orjson.loads(body) if body else None
        if (query or {}).get("dryRun"):
            _refuse("a replay has no server to ask for a dry run")
        answer = await self._fleet.write(self.cluster, place, verb, told)
        return orjson.dumps(answer or {"kind": "Status", "status": "Success"})

    async def stream(self, *_: object, **_more: object) -> aiohttp.ClientResponse:
        """Nothing is sent anywhere."""
        _refuse("a replay asks no API server")

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
        return _refuse("a replay asks no API server")


def _not_found(place: ApiPath) -> errors.NotFound:
    """As a server says it: without the details it would say nothing about the object (R6)."""
    details: Object = {"name": place.name, "kind": place.resource.plural}
    return errors.NotFound(404, "NotFound", f"{place.name!r} not found", details)


async def _to_nobody(_events: Sequence[Event]) -> None: ...


def _changed(verb: str, before: Object, body: Any) -> Object:
    if verb == "update":
        return copy.deepcopy(cast("Object", body))
    if isinstance(body, list):
        try:
            return jsonpatch.apply_patch(before, cast("list[Any]", body))
        except jsonpatch.JsonPatchException as e:
            raise errors.Invalid(422, "Invalid", f"the JSON patch does not fit: {e}") from e
    return cast("Object", merged(before, body))


def _deleted(before: Object) -> Object | None:
    if not before["metadata"].get("finalizers"):
        return None
    return merged(before, {"metadata": {"deletionTimestamp": utc_now()}})


def _check_preconditions(before: Object, wanted: Mapping[str, Any]) -> None:
    for field in ("uid", "resourceVersion"):
        if wanted.get(field) and wanted[field] != before["metadata"].get(field):
            raise errors.Conflict(409, "Conflict", f"the object has another {field}")


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
