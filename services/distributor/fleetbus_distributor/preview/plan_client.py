"""The client of a plan: it reads live, and turns every write into a dry run.

Reads after a write show its result, as if it had been stored, so that the code of a round runs on
it unchanged, round after round. What a server cannot check, because a namespace or a type would
only exist by then, is taken as it would be sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import orjson

from fleetbus.errors import NotFound
from fleetbus.kube.client import USER_AGENT, Object
from fleetbus.kube.connection.config import KubeConfig
from fleetbus.kube.connection.transport import MakeTransport
from fleetbus.kube.dry_run import (
    DryRunClient,
    Write,
    answer_of,
    check_preconditions,
    content_of,
    not_found,
)
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import JSON, ApiPath, Call, path_of, read_path, write_query
from fleetbus.kube.responses import Answer
from fleetbus.kube.selectors import LabelSelector
from fleetbus_distributor.preview.definitions import Definitions

_DRY_RUN: Final = {"dryRun": "All"}
_UNWRITTEN: Final = "planned-0"
"""The version of an object that a dry run has created: a server gives it none."""
_EVENTS: Final = "events"


@dataclass(slots=True)
class _Stored:
    """The object of a path after the writes so far; None for no object."""

    tree: Object | None
    applied: Object | None = None
    """The body of the last apply that the server did not check."""


class PlanClient(DryRunClient):
    """As `KubeClient`; nothing that it sends changes anything.

    Args:
        config: access data; None means the service account of the pod.
        user_agent: shown in the server's logs.
        make_transport: as for `KubeClient`.
    """

    def __init__(
        self,
        config: KubeConfig | None,
        *,
        user_agent: str,
        make_transport: MakeTransport | None = None,
    ) -> None:
        super().__init__(config, user_agent=user_agent, make_transport=make_transport)
        self.writes: list[Write] = []
        """In the order in which they would be sent; Kubernetes Events are left out."""
        self.before: dict[str, Object | None] = {}
        """Path → the object as it is, for each path that was written."""
        self.unchecked: set[str] = set()
        """Paths that the server could not check, because a namespace or a type is missing."""
        self._stored: dict[str, _Stored] = {}
        self._definitions = Definitions()

    def place(self, path: str, tree: Object) -> None:
        """Let an object be there, as if it had been written."""
        version: Object = {"metadata": {"resourceVersion": _UNWRITTEN}}
        self._stored[path] = _Stored(cast("Object", merged(version, tree)))

    def after(self, path: str) -> Object | None:
        """The object as it would be after the writes."""
        return self._stored[path].tree if path in self._stored else None

    async def dry_write(self, resource: str, obj: Object, *, is_new: bool) -> Object:
        """Return the result of a write that the server only tries; it is no write of the plan.

        A field that the type does not have is refused: elsewhere it would be left out silently.
        """
        metadata = obj["metadata"]
        name = "" if is_new else str(metadata["name"])
        path = path_of(resource, str(metadata["namespace"]), name)
        query = write_query(USER_AGENT, dry_run=True) | {"fieldValidation": "Strict"}
        return await self.send(Call("POST" if is_new else "PUT", path, query, orjson.dumps(obj)))

    # --- reads --------------------------------------------------------------------------------

    async def read_other(self, call: Call) -> Answer:
        """Discover what is served, and what would be."""
        if not self._definitions.serves(call.path):
            # The aggregated documents would lack the planned types, those of versions get them.
            is_whole = not self._definitions.are_any
            return await self.forward(call if is_whole else call._replace(accept=JSON, etag=""))
        try:
            document = await self.send(call)
        except NotFound:
            document: Object = {"kind": "APIResourceList", "resources": []}
        return answer_of(self._definitions.extend(call.path, document))

    async def read_object(self, call: Call, place: ApiPath) -> Object | None:
        """Read live, unless it was written."""
        del place
        stored = self._stored.get(call.path)
        return stored.tree if stored is not None else await self.send(call)

    async def read_list(self, call: Call, place: ApiPath) -> Object:
        """Read a list with the results of the writes in it."""
        query = call.query or {}
        try:
            page = await self.send(call)
        except NotFound:
            if not self._definitions.has(place.resource):
                raise
            page: Object = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}
        selector = LabelSelector.parse(query.get("labelSelector", ""))
        changed = {
            path: stored.tree
            for path, stored in self._stored.items()
            if _is_in(read_path(path), place) and "fieldSelector" not in query
        }
        unchanged = [
            item
            for item in cast("list[Object]", page.get("items") or [])
            if _path_of_item(place, item) not in changed
        ]
        is_last = not (page.get("metadata") or {}).get("continue")
        added = [
            tree
            for tree in changed.values()
            if is_last and tree and selector.matches(tree["metadata"].get("labels") or {})
        ]
        return {**page, "items": [*unchanged, *added]}

    # --- writes -------------------------------------------------------------------------------

    async def take_write(self, call: Call, write: Write) -> Object:
        """Send it as a dry run, and let later reads see its result."""
        if "dryRun" in (call.query or {}):
            return await self.send(call)
        if write.place.resource.plural == _EVENTS:
            return write.body  # for people, when it happens
        live = await self._live(write)
        if write.verb == "apply":
            answer = await self._apply(call, write, live)
        else:
            after = await self._after(call, write, live)
            answer = self._store(write, after) or live or {}
        for api_version in self._definitions.take_new():
            await self.discovery.version(api_version, anew=True)
        return answer

    async def _live(self, write: Write) -> Object | None:
        """The object as it is after the writes so far."""
        path, place = write.path, write.place
        if path in self._stored:
            return self._stored[path].tree
        if write.verb == "create":
            return None
        live = None
        with suppress(NotFound):  # the type is not served yet
            live = await self.get(place.resource, place.namespace, place.name)
        self.before.setdefault(path, live)
        return live

    async def _after(self, call: Call, write: Write, live: Object | None) -> Object | None:
        """The object after any write but an apply; what an earlier write changed, only we have."""
        if live is None and write.verb != "create":
            raise not_found(write.place)
        if write.path in self._stored:
            return self._result(write, live)
        if write.verb != "delete":
            return await self._try(call, write)
        # API servers ignore the query of a deletion that has a body: in the query alone, this
        # would delete the object.
        options = {**write.body, "dryRun": [_DRY_RUN["dryRun"]]}
        query = {**(call.query or {}), **_DRY_RUN}
        await self.send(call._replace(query=query, body=orjson.dumps(options)))
        return self._result(write, live)

    async def _apply(self, call: Call, write: Write, live: Object | None) -> Object:
        path = write.path
        stored = self._stored.get(path)
        write = replace(write, verb="apply" if live else "create")
        if stored is not None and (stored.applied is not None or self._is_replaced(path)):
            # The server has another object there, or none.
            return self._apply_unseen(write, stored)
        made = await self._try(call, write)
        if live is not None and content_of(made) == content_of(live):
            return live
        return self._store(write, made) or {}

    def _is_replaced(self, path: str) -> bool:
        """Whether what is there, if anything, differs from the object that the server has."""
        tree, before = self._stored[path].tree, self.before.get(path)
        if tree is None or before is None:
            return True
        return bool(tree["metadata"].get("uid") != before["metadata"]["uid"])

    def _apply_unseen(self, write: Write, stored: _Stored) -> Object:
        intended = _without_conditions(write.body)
        if stored.tree is not None:
            check_preconditions(stored.tree, write.body["metadata"])
            if stored.applied == intended:
                return stored.tree
        return self._store(write, self._result(write, None), applied=intended) or {}

    async def _try(self, call: Call, write: Write) -> Object:
        """Send a write as a dry run; take it as it is where a planned namespace or type lacks."""
        query = {**(call.query or {}), **_DRY_RUN}
        try:
            return await self.send(call._replace(query=query))
        except NotFound:
            if not self._is_planned(write.place):
                raise
        result = self._result(write, None) or {}
        self._stored[write.path] = _Stored(result, _without_conditions(write.body))
        return result

    def _is_planned(self, place: ApiPath) -> bool:
        """Whether an earlier write of this plan makes what a server misses here."""
        namespace = path_of("v1/namespaces", "", place.namespace) if place.namespace else ""
        has_namespace = namespace in self._stored and self._stored[namespace].tree is not None
        return has_namespace or self._definitions.has(place.resource)

    def _result(self, write: Write, live: Object | None) -> Object | None:
        """The object that the server would make of a write, but without defaults."""
        path = write.path
        if live is None and self.before.get(path) is None:
            self.unchecked.add(path)  # what replaces an object was checked before
        return write.result(live, new_uid=str(uuid.uuid4()))

    def _store(
        self, write: Write, result: Object | None, *, applied: Object | None = None
    ) -> Object | None:
        """Note a write and let later reads see its result, under a version of its own."""
        path = write.path
        self.writes.append(write)
        self.before.setdefault(path, None)
        stored = self._stored.get(path)
        if result is None:
            self._stored[path] = _Stored(None)
            return None
        version = {"metadata": {"resourceVersion": f"planned-{len(self.writes)}"}}
        tree = self._definitions.establish(cast("Object", merged(result, version)))
        earlier = stored.applied if stored else None
        self._stored[path] = _Stored(tree, earlier if applied is None else applied)
        return tree


def _without_conditions(body: Object) -> Object:
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("uid", "resourceVersion")}
    return {**body, "metadata": metadata}


def _is_in(path: ApiPath, collection: ApiPath) -> bool:
    is_there = collection.namespace in ("", path.namespace)
    return path.resource == collection.resource and is_there


def _path_of_item(place: ApiPath, item: Mapping[str, Any]) -> str:
    metadata = item["metadata"]
    return path_of(place.resource, str(metadata.get("namespace") or ""), str(metadata["name"]))
