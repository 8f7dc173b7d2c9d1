"""Writes that are not sent: the object as it would be after one, and the client that takes them.

Only an API server knows defaults, generated names and what webhooks change, and checks who owns a
field; without it an apply is merged.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import jsonpatch
import orjson

from fleetbus.errors import AlreadyExists, Conflict, Invalid, NotFound
from fleetbus.kube.client import KubeClient, Object
from fleetbus.kube.merge_patch import merged
from fleetbus.kube.requests import JSON, ApiPath, Call, path_of, read_path
from fleetbus.kube.responses import Answer
from fleetbus.process.clock import utc_now
from fleetbus_proto.errors import InvalidName

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_APPLY: Final = "application/apply-patch+yaml"
_PARTS: Final = {"status": "status", "scale": "spec"}
"""Subresource → the only part of the object that a write to it changes."""
_SET_ONCE: Final = ("uid", "creationTimestamp", "managedFields")


@dataclass(frozen=True, slots=True)
class Write:
    """One write, as it would be sent."""

    verb: str
    """`create`, `update`, `patch`, `apply` or `delete`."""
    place: ApiPath
    body: Any

    @classmethod
    def of(cls, call: Call, place: ApiPath) -> Self:
        """Read a request that writes to this path."""
        body: Any = orjson.loads(call.body) if call.body else {}
        verb = "apply" if call.content_type == _APPLY else _VERBS[call.method]
        if verb == "create" and not place.subresource:
            metadata = body["metadata"]
            name = metadata.get("name") or f"{metadata.get('generateName', '')}dry-run"
            place = place._replace(name=str(name))
        return cls(verb, place, body)

    @property
    def path(self) -> str:
        """The path of the object, without a subresource."""
        return path_of(self.place.resource, self.place.namespace, self.place.name)

    def result(self, before: Object | None, *, new_uid: str) -> Object | None:
        """The object after the write; None if it is gone then.

        Args:
            before: the object as it is; None if there is none.
            new_uid: the UID of an object that this creates.

        Raises:
            KubeError: an API server would refuse it.
        """
        if before is None:
            if self.verb in ("create", "apply"):
                return self._made(new_uid)
            raise not_found(self.place)
        if self.verb == "create":
            raise AlreadyExists(409, "AlreadyExists", f"{self.place.name!r} already exists")
        if self.verb == "delete":
            check_preconditions(before, self.body.get("preconditions") or {})
            leaving = {"metadata": {"deletionTimestamp": utc_now()}}
            return merged(before, leaving) if before["metadata"].get("finalizers") else None
        changed = self._changed(before)
        check_preconditions(before, changed["metadata"])
        if part := _PARTS.get(self.place.subresource):
            changed = {**before, part: changed.get(part)}
        # A server ignores changes of these.
        kept = {k: v for k, v in before["metadata"].items() if k in _SET_ONCE}
        metadata: Object = {**cast("Object", changed["metadata"]), **kept}
        is_gone = metadata.get("deletionTimestamp") and not metadata.get("finalizers")
        return None if is_gone else {**changed, "metadata": metadata}

    def _made(self, uid: str) -> Object:
        made = copy.deepcopy(self.body)
        made["metadata"] |= {"name": self.place.name, "uid": uid, "creationTimestamp": utc_now()}
        if self.place.namespace:
            made["metadata"]["namespace"] = self.place.namespace
        return made

    def _changed(self, before: Object) -> Object:
        if self.verb == "update":
            return copy.deepcopy(self.body)
        if isinstance(self.body, list):
            try:
                return jsonpatch.apply_patch(before, cast("list[Any]", self.body))
            except jsonpatch.JsonPatchException as e:
                raise Invalid(422, "Invalid", f"the JSON patch does not apply: {e}") from e
        return cast("Object", merged(before, self.body))


class DryRunClient(KubeClient):
    """A client whose writes are not sent: a subclass reads, and keeps what becomes of them."""

    async def exchange(self, call: Call) -> Answer:
        """Answer one request.

        Raises:
            KubeError: as `KubeClient.exchange`.
        """
        try:
            place = read_path(call.path)
        except InvalidName:
            return await self.read_other(call)
        if call.method != "GET":
            answer = await self.take_write(call, Write.of(call, place))
        elif place.name:
            answer = await self.read_object(call, place)
        else:
            answer = await self.read_list(call, place)
        if answer is None:
            raise not_found(place)
        return answer_of(answer)

    async def forward(self, call: Call) -> Answer:
        """Send a request to the API server as it is."""
        return await super().exchange(call)

    async def send(self, call: Call) -> Object:
        """Send a request to the API server as it is, and parse the response."""
        return orjson.loads((await self.forward(call)).body)

    async def read_object(self, call: Call, place: ApiPath) -> Object | None:
        """Read one object, with the results of writes."""
        raise NotImplementedError

    async def read_list(self, call: Call, place: ApiPath) -> Object:
        """Read a page of a list, with the results of writes."""
        raise NotImplementedError

    async def read_other(self, call: Call) -> Answer:
        """Read anything else: discovery, the version."""
        raise NotImplementedError

    async def take_write(self, call: Call, write: Write) -> Object:
        """Take a write, and answer like an API server."""
        raise NotImplementedError


def answer_of(tree: Object) -> Answer:
    """A response with a JSON object."""
    return Answer(orjson.dumps(tree), JSON, "", is_unchanged=False)


def check_preconditions(before: Object, preconditions: Mapping[str, Any]) -> None:
    """Check the uid and resourceVersion that a write is for, where it names them.

    Raises:
        Conflict: the object has another one.
    """
    for field in ("uid", "resourceVersion"):
        if preconditions.get(field) not in (None, "", before["metadata"].get(field)):
            raise Conflict(409, "Conflict", f"precondition failed: {field} differs")


def content_of(tree: Mapping[str, Any]) -> Object:
    """The part of an object that a write changes: if it stays the same, nothing is stored."""
    metadata: Object = dict(tree["metadata"])
    for name in ("resourceVersion", "generation"):
        metadata.pop(name, None)
    managed = [
        {key: part for key, part in entry.items() if key != "time"}
        for entry in cast("list[Object]", metadata.get("managedFields") or [])
    ]
    return {**tree, "metadata": {**metadata, "managedFields": managed}}


def not_found(place: ApiPath) -> NotFound:
    """Like a server: without the details a 404 does not prove the object is gone (rule R6)."""
    details: Object = {"name": place.name, "kind": place.resource.plural}
    message = f"{place.resource.plural} {place.name!r} not found"
    return NotFound(404, "NotFound", message, details)
