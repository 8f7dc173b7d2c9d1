"""The paths below /kube: what one names, and whether a request is a list or a review."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from starlette.types import Scope

from fleetbus_proto.resources import CORE
from fleetbus_query_api.responses.status import KUBE_PREFIX

_NAMESPACES: Final = "namespaces"
_OF_NAMESPACES: Final = frozenset({"status", "finalize"})
"""Paths behind the name of a namespace that are no resources in it."""
_REVIEWS: Final = {
    "apis/authorization.k8s.io/v1/selfsubjectaccessreviews": "SelfSubjectAccessReview",
    "apis/authorization.k8s.io/v1/selfsubjectrulesreviews": "SelfSubjectRulesReview",
    "apis/authentication.k8s.io/v1/selfsubjectreviews": "SelfSubjectReview",
}
"""Questions that Kubernetes asks by POST, by what follows the cluster; nothing is written."""
_FALSE = ("false", "0")


def review_kind(path: str) -> str:
    """The kind of review that is posted to a path below `/kube/<cluster>/`; empty for others."""
    return _REVIEWS.get(path.rstrip("/"), "")


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """The objects that a path names.

    Attributes:
        group: `core` for the core group.
        namespace: empty for all, or for objects without one.
        name: of one object; empty for a list.
        subresource: like `log`; empty for the object itself.
    """

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """The resource key: `apps/deployments`."""
        return f"{self.group}/{self.plural}"

    @property
    def api_version(self) -> str:
        """The apiVersion of an object: `apps/v1`, `v1`."""
        return self.version if self.group == CORE else f"{self.group}/{self.version}"

    @property
    def qualified(self) -> str:
        """As Kubernetes names the resource in errors: `pods`, `deployments.apps`."""
        return self.plural if self.group == CORE else f"{self.plural}.{self.group}"

    @property
    def details(self) -> dict[str, str]:
        """The details of a Status about it."""
        group = "" if self.group == CORE else self.group
        fields = {"name": self.name, "group": group, "kind": self.plural}
        return {key: value for key, value in fields.items() if value}


def parse_path(path: str) -> ResourcePath | None:
    """Parse what follows `/kube/<cluster>/`; None if it names no resource."""
    parts = path.split("/")
    if "" in parts:
        return None
    match parts:
        case ["api", "v1", *rest]:
            return _parse_rest(CORE, "v1", rest)
        case ["apis", group, version, *rest] if group != CORE:
            return _parse_rest(group, version, rest)
        case _:
            return None


def _parse_rest(group: str, version: str, segments: list[str]) -> ResourcePath | None:
    """Parse what follows the group version."""
    namespace = ""
    is_of_namespace = len(segments) == 3 and segments[2] in _OF_NAMESPACES  # noqa: PLR2004 -- its form
    if len(segments) > 2 and segments[0] == _NAMESPACES and not is_of_namespace:  # noqa: PLR2004 -- as above
        namespace, segments = segments[1], segments[2:]
    match segments:
        case [plural]:
            return ResourcePath(group, version, plural, namespace)
        case [plural, name]:
            return ResourcePath(group, version, plural, namespace, name)
        case [plural, name, *sub]:
            return ResourcePath(group, version, plural, namespace, name, "/".join(sub))
        case _:
            return None


def is_list(scope: Scope) -> bool:
    """Whether a request lists objects: its answer may be large."""
    return _is_of_many(scope) and not _asks_for_watch(scope)


def is_review(scope: Scope) -> bool:
    """Whether a request asks for the rights of its user: by POST, and writes nothing."""
    return scope["method"] == "POST" and bool(review_kind(_path_in_cluster(scope)))


def _is_of_many(scope: Scope) -> bool:
    named = parse_path(_path_in_cluster(scope).rstrip("/"))
    return named is not None and not named.name


def _path_in_cluster(scope: Scope) -> str:
    """The path below /kube/<cluster>/; empty for other paths."""
    path = str(scope.get("path", ""))
    if not path.startswith(KUBE_PREFIX):
        return ""
    return path.removeprefix(KUBE_PREFIX).partition("/")[2]


def _asks_for_watch(scope: Scope) -> bool:
    query: bytes = scope.get("query_string", b"")
    if b"watch" not in query:
        return False
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("watch", ["false"])
    return values[-1].lower() not in _FALSE
