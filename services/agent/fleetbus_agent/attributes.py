"""Reads from method, path and query what a request asks for, as an API server does.

A path that two readers could understand differently is refused: percent-encoded slashes and dots,
empty segments, the old prefixes `watch/` and `proxy/`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from fleetbus.kube.requests import read_path
from fleetbus_proto.errors import InvalidName

_PATH: Final = re.compile(r"/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
_VERBS: Final = {
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_OLD_PREFIXES: Final = ("watch", "proxy")
_OPEN_PATHS: Final = ("/version", "/api", "/apis", "/healthz", "/livez", "/readyz", "/openapi/v2")
"""They say which API is there and whether it lives, and nothing about an object."""
_TRUE: Final = ("true", "1")
_FALSE: Final = ("false", "0")
_ACCOUNT: Final = re.compile(r"system:serviceaccount:[^:]+:[^:]+")


class UnclearRequest(Exception):
    """The request is none that this agent understands; the text says why."""


class Attributes(NamedTuple):
    """Verb, resource, namespace and name of a request."""

    verb: str
    """A verb of Kubernetes, like `list`."""
    resource: str
    """`apps/deployments`, `core/pods/log`; a path for what is no resource."""
    namespace: str = ""
    name: str = ""

    @property
    def is_resource(self) -> bool:
        """Whether it is about objects, and not about the API itself."""
        return not self.resource.startswith("/")


def read_attributes(method: str, path: str, query: Mapping[str, str]) -> Attributes:
    """Read what a request asks for.

    Args:
        method: of HTTP.
        path: escaped, without a query.
        query: the parameters.

    Raises:
        UnclearRequest: it is none that an API server and this agent would understand alike.
    """
    verb = _VERBS.get(method)
    if verb is None:
        raise UnclearRequest(f"the method {method[:20]!r} is none of {', '.join(_VERBS)}")
    _check_path(path)
    if _is_open(path):
        return Attributes(verb, path)
    try:
        place = read_path(path)
    except InvalidName as e:
        raise UnclearRequest(f"{path[:200]!r} is no path of the Kubernetes API") from e
    if place.resource.plural in _OLD_PREFIXES or not place.resource.plural:
        raise UnclearRequest(f"{path[:200]!r} is no path of a resource")
    key = "/".join(filter(None, (place.resource.key, place.subresource)))
    if not place.name:
        verb = _verb_of_collection(verb, query)
    return Attributes(verb, key, place.namespace, place.name)


def impersonation(user: str) -> Attributes:
    """The attributes of an impersonation, which a request for another user needs beside its own."""
    if _ACCOUNT.fullmatch(user):
        namespace, name = user.split(":")[2:]
        return Attributes("impersonate", "core/serviceaccounts", namespace, name)
    return Attributes("impersonate", "core/users", "", user)


def _check_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise UnclearRequest("the path has characters that no path may have")
    for segment in path[1:].split("/"):
        plain = unquote(segment)
        if plain in ("", ".", "..") or "/" in plain:
            raise UnclearRequest(f"the path has the segment {segment[:100]!r}")


def _is_open(path: str) -> bool:
    segments = path[1:].split("/")
    if path in _OPEN_PATHS or path.startswith("/openapi/v3"):
        return True
    # /api/v1, /apis/apps, /apis/apps/v1: the lists of what is served.
    return len(segments) <= {"api": 2, "apis": 3}.get(segments[0], 0)


def _verb_of_collection(verb: str, query: Mapping[str, str]) -> str:
    if verb == "delete":
        return "deletecollection"
    if verb != "get":
        return verb
    watch = query.get("watch", "false").lower()
    if watch not in (*_TRUE, *_FALSE):
        raise UnclearRequest(f"the parameter watch is {watch[:20]!r}")
    return "watch" if watch in _TRUE else "list"
