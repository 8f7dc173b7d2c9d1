"""Requests to an API server before its address is known: paths, queries, limits."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from fleetbus.kube.responses import MIB, RESPONSE_LIMIT
from fleetbus.run.current import current_run
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource, parse_resource

JSON: Final = "application/json"
_PAGE_LIMIT: Final = 64 * MIB
"""For a page of a list that is parsed as a whole; `list_pages` reads larger ones."""
_CORE: Final = "core"
_GROUP_PARTS: Final = 3
_TIMEOUT: Final = timedelta(seconds=30)
_ACTING_USER: Final = ContextVar("acting_user", default="")


@contextmanager
def acting_as(user: str) -> Generator[None]:
    """Impersonate a user in the requests of this task; "" for the client's own user."""
    token = _ACTING_USER.set(user)
    try:
        yield
    finally:
        _ACTING_USER.reset(token)


def acting_user() -> str:
    """The user to impersonate; "" for none."""
    return _ACTING_USER.get()


class Call(NamedTuple):
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    within: timedelta = _TIMEOUT
    alone: bool = False
    """Sent through a new connection of its own."""
    etag: str = ""
    """The entity tag of the document that the caller has; the answer to the same one is empty."""
    user_agent: str = ""
    """Shown in the server's logs and in managedFields; empty for the client's own."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the body of the request and for the response that it wants."""
        headers = {"Accept": self.accept}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        if self.etag:
            headers["If-None-Match"] = self.etag
        if self.user_agent:
            headers["User-Agent"] = self.user_agent
        return headers

    @property
    def limit(self) -> int:
        """The largest response in bytes: more for a page of a list than for an object (S7)."""
        return _PAGE_LIMIT if "limit" in (self.query or {}) else RESPONSE_LIMIT


class ApiPath(NamedTuple):
    """An object, a collection (without a name), or a subresource."""

    resource: Resource
    namespace: str
    name: str
    subresource: str


def path_of(resource: str | Resource, namespace: str = "", name: str = "") -> str:
    """The URL path of a collection or an object; names are escaped.

    Raises:
        InvalidName: no object can have this name; the path would mean something else.
    """
    if {namespace, name} & {".", ".."}:
        raise InvalidName("neither '.' nor '..' can be the name of an object")
    parsed = parse_resource(resource) if isinstance(resource, str) else resource
    parts = [parsed.api_path]
    if namespace:
        parts.append(f"namespaces/{quote(namespace, safe='')}")
    parts.append(parsed.plural)
    if name:
        parts.append(quote(name, safe=""))
    return "/".join(parts)


def used_path(cluster: str, resource: str | Resource, namespace: str, name: str = "") -> str:
    """`path_of` an object that is read or written live; a run records that it uses its resource."""
    parsed = parse_resource(resource) if isinstance(resource, str) else resource
    if cluster and (run := current_run()):
        run.used.add((cluster, parsed.key))
    return path_of(parsed, namespace, name)


def read_path(path: str) -> ApiPath:
    """Parse the path of a resource.

    Raises:
        InvalidName: it is another path: discovery, `/version` and the like.
    """
    parts = [unquote(segment) for segment in path.strip("/").split("/")]
    if parts[0] == "api" and len(parts) >= _GROUP_PARTS:
        group, version, segments = _CORE, parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > _GROUP_PARTS:
        group, version, segments = parts[1], parts[2], parts[3:]
    else:
        raise InvalidName(f"{path!r} is not the path of a resource")
    namespace = ""
    # `namespaces/NAME/status` is a subresource of a namespace, not a resource in it.
    is_namespaced = segments[0] == "namespaces" and segments[2:3] not in (
        [],
        ["status"],
        ["finalize"],
    )
    if is_namespaced:
        namespace, segments = segments[1], segments[2:]
    plural, name, *sub = [*segments, ""][: max(2, len(segments))]
    return ApiPath(Resource(group, version, plural), namespace, name, "/".join(sub))


def namespace_of(obj: Mapping[str, Any]) -> str:
    """The namespace of an object to be written; empty for a cluster-scoped one."""
    return str(obj.get("metadata", {}).get("namespace") or "")


def write_query(field_manager: str, dry_run: bool = False) -> dict[str, str]:
    """The query of a write."""
    query = {"fieldManager": field_manager}
    return query | {"dryRun": "All"} if dry_run else query


def selector_query(label_selector: str, field_selector: str) -> dict[str, str]:
    """The query parameters of the selectors; empty without any."""
    selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: text for name, text in selectors.items() if text}
