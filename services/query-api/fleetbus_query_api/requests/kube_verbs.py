"""Tells the limits and the gate of a request below /kube whether it is a list, or a review."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import Scope

from fleetbus_query_api.requests.kube_paths import parse_path, review_kind
from fleetbus_query_api.responses.status import KUBE_PREFIX

_FALSE = ("false", "0")


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
