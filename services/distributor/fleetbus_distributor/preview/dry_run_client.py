"""A client of an API server that reads live, and turns every write into a dry run.

Reads after a write show its result, as if it had been stored, so that the code of a round runs on
it unchanged, round after round. What a server cannot check, because a namespace or a type would
only exist by then, is taken as it would be sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import jsonpatch  # pyright: ignore[reportMissingTypeStubs]
import orjson

from fleetbus.errors import Conflict, NotFound
from fleetbus.kube.client import USER_AGENT, KubeClient, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import ApiPath, Call, path_of, read_path, write_query
from fleetbus.kube.selectors import LabelSelector
from fleetbus_distributor.preview.definitions import Definitions
from fleetbus_proto.errors import InvalidName

_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_DRY_RUN: Final = {"dryRun": "All"}
_ONLY_CREATE: Final = "1"
_UNWRITTEN: Final = "planned-0"
"""The version of an object that a dry run has created: a server gives it none."""
_EVENTS: Final = "events"


@dataclass(frozen=True, slots=True)
class Write:
    """One write that would be sent."""

    verb: str
    """create, apply, update, patch or delete."""
    path: str


@dataclass(slots=True)
class _Stored:
    """The object of a path after the writes so far; None for no object."""

    tree: Object | None
    applied: Object | None = None
    """The body of the last apply that the server did not check."""


class DryRunClient(KubeClient):
    """As `KubeClient`; nothing that it sends changes anything.

    Args:
        config: access data; None means the service account of the pod.
        user_agent: shown in the server's logs.
    """

    def __init__(self, config: KubeConfig | None, *, user_agent: str) -> None:
        super().__init__(config, user_agent=user_agent)
        self.writes: list[Write] = []
        """In the order in which they would be sent; Kubernetes Events are left out."""
        self.before: dict[str, Object | None] = {}
        """Path → the object as it is, for each path that was written."""
        self.unchecked: set[str] = set()
        """Paths that the server could not check, because a namespace or a type is missing."""
        self._stored: dict[str, _Stored] = {}
        self._definitions = Definitions()
        self._count = 0

    def place(self, path: str, tree: Object) -> None:
        """Let an object be there, as if it had been written."""
        found: Object = {"metadata": {"resourceVersion": _UNWRITTEN}}
        self._stored[path] = _Stored(cast("Object", merged(found, tree)))

    def after(self, path: str) -> Object | None:
        """The object as it would be after the writes."""
        return self._stored[path].tree if path in self._stored else None

    async def dry_update(self, resource: str, obj: Object) -> Object:
        """Return the result of a PUT that the server only tries; it is no write of the plan."""
        metadata = obj["metadata"]
        path = path_of(resource, str(metadata["namespace"]), str(metadata["name"]))
        query = write_query(USER_AGENT, dry_run=True)
        answer = await self.request(Call("PUT", path, query, orjson.dumps(obj)))
        return cast("Object", orjson.loads(answer))

    async def request(self, call: Call) -> bytes:
        """Read live, or send a write as a dry run; the result of earlier ones is seen.

        Raises:
            KubeError: as `KubeClient.request`.
        """
        try:
            target = read_path(call.path)
        except InvalidName:
            return self._definitions.extend(call.path, await self._discover(call))
        if call.method == "GET":
            return await self._read(call, target)
        if "dryRun" in (call.query or {}):
            return await super().request(call)
        if target.resource.plural == _EVENTS:
            return call.body or b"{}"  # for people, when it happens
        tree = await self._written(call, target)
        for api_version in self._definitions.take_new():
            await self.discovery.version(api_version, anew=True)
        return orjson.dumps(tree)

    async def _discover(self, call: Call) -> bytes:
        try:
            return await super().request(call)
        except NotFound:
            if self._definitions.serves(call.path):
                return b'{"kind":"APIResourceList","resources":[]}'
            raise

    # --- reads --------------------------------------------------------------------------------

    async def _read(self, call: Call, target: ApiPath) -> bytes:
        if not target.name:
            return await self._list(call, target)
        stored = self._stored.get(call.path)
        if stored is None:
            return await super().request(call)
        if stored.tree is None:
            raise _not_found(target)
        return orjson.dumps(stored.tree)

    async def _list(self, call: Call, target: ApiPath) -> bytes:
        """A list with the results of the writes in it."""
        try:
            found: Object = orjson.loads(await super().request(call))
        except NotFound:
            if not self._definitions.has(target.resource):
                raise
            found = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}
        selector = LabelSelector.parse((call.query or {}).get("labelSelector", ""))
        changed = {
            path: one.tree
            for path, one in self._stored.items()
            if _is_in(read_path(path), target) and "fieldSelector" not in (call.query or {})
        }
        kept = [
            one
            for one in cast("list[Object]", found.get("items") or [])
            if _path_of_item(target, one) not in changed
        ]
        is_last = not (found.get("metadata") or {}).get("continue")
        added = [
            tree
            for tree in changed.values()
            if is_last and tree and selector.matches(tree["metadata"].get("labels") or {})
        ]
        return orjson.dumps({**found, "items": [*kept, *added]})

    # --- writes -------------------------------------------------------------------------------

    async def _written(self, call: Call, target: ApiPath) -> Object:
        if call.method == "POST":
            return await self._create(call, target)
        path = call.path.removesuffix(f"/{target.subresource}") if target.subresource else call.path
        if call.method == "DELETE":
            return await self._delete(call, target)
        live = await self._live(path, target)
        if call.content_type == _APPLY:
            return await self._apply(call, target, live)
        if live is None:
            raise _not_found(target)
        verb = "update" if call.method == "PUT" else "patch"
        return await self._change(call, path, target, live, verb)

    async def _live(self, path: str, target: ApiPath) -> Object | None:
        if path in self._stored:
            return self._stored[path].tree
        try:
            found = await super().get(target.resource, target.namespace, target.name)
        except NotFound:
            found = None  # the type is not served yet
        self.before.setdefault(path, found)
        return found

    async def _create(self, call: Call, target: ApiPath) -> Object:
        body: Object = orjson.loads(call.body or b"{}")
        path = f"{call.path}/{body['metadata'].get('name', '')}"
        if path in self._stored and self._stored[path].tree is None:
            return self._store(path, "create", self._unstored(body, path))
        made = await self._send_dry(call, body, path, target)
        self.before.setdefault(path, None)
        return self._store(path, "create", made)

    async def _apply(self, call: Call, target: ApiPath, live: Object | None) -> Object:
        path, body = call.path, cast("Object", orjson.loads(call.body or b"{}"))
        stored = self._stored.get(path)
        verb = "apply" if live else "create"
        if stored is not None and (stored.applied is not None or self._is_replaced(path)):
            # The server has another object there, or none.
            return self._apply_unseen(body, path, stored, verb)
        made = await self._send_dry(call, body, path, target)
        if live is not None and _content(made) == _content(live):
            return live
        return self._store(path, verb, made)

    def _is_replaced(self, path: str) -> bool:
        """Whether what is there, if anything, differs from the object that the server has."""
        tree, before = self._stored[path].tree, self.before.get(path)
        if tree is None or before is None:
            return True
        return bool(tree["metadata"].get("uid") != before["metadata"]["uid"])

    def _apply_unseen(self, body: Object, path: str, stored: _Stored, verb: str) -> Object:
        intended = _without_conditions(body)
        if stored.tree is not None and body["metadata"].get("resourceVersion") == _ONLY_CREATE:
            raise Conflict(409, "Conflict", f"{path} exists")
        if stored.tree is not None and stored.applied == intended:
            return stored.tree
        return self._store(path, verb, self._unstored(body, path), applied=intended)

    async def _send_dry(self, call: Call, body: Object, path: str, target: ApiPath) -> Object:
        """Send a write as a dry run; take it as it is where a planned namespace or type lacks."""
        query = {**(call.query or {}), **_DRY_RUN}
        try:
            return orjson.loads(await super().request(call._replace(query=query)))
        except NotFound:
            if not self._is_planned(target):
                raise
        made = self._unstored(body, path)
        self._stored[path] = _Stored(made, _without_conditions(body))
        return made

    def _is_planned(self, target: ApiPath) -> bool:
        """Whether an earlier write of this plan makes what a server misses here."""
        namespace = path_of("v1/namespaces", "", target.namespace) if target.namespace else ""
        has_namespace = namespace in self._stored and self._stored[namespace].tree is not None
        return has_namespace or self._definitions.has(target.resource)

    def _unstored(self, body: Object, path: str) -> Object:
        """An object that the server would make of a body; without defaults."""
        if self.before.get(path) is None:  # what replaces an object was checked before
            self.unchecked.add(path)
        return merged(body, {"metadata": {"uid": str(uuid.uuid4()), "resourceVersion": ""}})

    async def _change(
        self, call: Call, path: str, target: ApiPath, live: Object, verb: str
    ) -> Object:
        """A PUT or a merge patch; what is there by an earlier write is changed here."""
        body: Any = orjson.loads(call.body or b"{}")
        if path not in self._stored:
            made = await self._send_dry(call, body, path, target)
            return self._store(path, verb, made)
        if call.method == "PUT":
            part = {"status": body.get("status")} if target.subresource == "status" else body
            made = {**live, **part}
        elif call.content_type == _MERGE:
            made = cast("Object", merged(live, body))
        else:
            made = cast("Object", jsonpatch.JsonPatch(body).apply(live))
        return self._store(path, verb, made)

    async def _delete(self, call: Call, target: ApiPath) -> Object:
        live = await self._live(call.path, target)
        if live is None:
            raise _not_found(target)
        if self._stored.get(call.path) is None:
            # API servers ignore the query of a deletion that has a body: in the query alone, this
            # would delete the object.
            options = {**orjson.loads(call.body or b"{}"), "dryRun": [_DRY_RUN["dryRun"]]}
            query = {**(call.query or {}), **_DRY_RUN}
            await super().request(call._replace(query=query, body=orjson.dumps(options)))
        self.writes.append(Write("delete", call.path))
        is_held = bool(live["metadata"].get("finalizers"))
        ended = merged(live, {"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}})
        self._stored[call.path] = _Stored(ended if is_held else None)
        return live

    def _store(
        self, path: str, verb: str, made: Object, *, applied: Object | None = None
    ) -> Object:
        """Note a write and let later reads see its result, under a version of its own."""
        self._count += 1
        tree = merged(made, {"metadata": {"resourceVersion": f"planned-{self._count}"}})
        tree = self._definitions.establish(tree)
        known = self._stored.get(path)
        body = applied if applied is not None else (known.applied if known else None)
        self._stored[path] = _Stored(tree, body)
        self.writes.append(Write(verb, path))
        return tree


def _without_conditions(body: Object) -> Object:
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("uid", "resourceVersion")}
    return {**body, "metadata": metadata}


def _content(tree: Mapping[str, Any]) -> Object:
    """The part of an object that a write changes: if it stays the same, nothing is stored."""
    metadata: Object = dict(tree["metadata"])
    for name in ("resourceVersion", "generation"):
        metadata.pop(name, None)
    managed = [
        {key: part for key, part in one.items() if key != "time"}
        for one in cast("list[Object]", metadata.get("managedFields") or [])
    ]
    return {**tree, "metadata": {**metadata, "managedFields": managed}}


def _is_in(path: ApiPath, collection: ApiPath) -> bool:
    is_there = collection.namespace in ("", path.namespace)
    return path.resource == collection.resource and is_there


def _path_of_item(target: ApiPath, item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return path_of(target.resource, str(metadata.get("namespace") or ""), str(metadata["name"]))


def _not_found(target: ApiPath) -> NotFound:
    details = {"name": target.name, "kind": target.resource.plural}
    message = f"{target.resource.plural} {target.name!r} not found"
    return NotFound(404, "NotFound", message, details)
