"""Tells the limits whether a request below /kube is a list."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.types import Scope

from fleetbus_query_api.kube.paths import parse_path
from fleetbus_query_api.kube.status import KUBE_PREFIX

_FALSE = ("false", "0")


def is_list(scope: Scope) -> bool:
    """Whether a request lists objects: its answer may be large."""
    return _is_of_many(scope) and not _asks_for_watch(scope)


def _is_of_many(scope: Scope) -> bool:
    path = str(scope.get("path", ""))
    if not path.startswith(KUBE_PREFIX):
        return False
    named = parse_path(path.removeprefix(KUBE_PREFIX).partition("/")[2].rstrip("/"))
    return named is not None and not named.name


def _asks_for_watch(scope: Scope) -> bool:
    query: bytes = scope.get("query_string", b"")
    if b"watch" not in query:
        return False
    found = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("watch", ["false"])
    return found[-1].lower() not in _FALSE
