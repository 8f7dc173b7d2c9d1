"""Follows the objects of a list, by a watch of the Kubernetes API that the query API serves.

A watch goes on where the list ended, and where it broke off: an API process that restarts costs a
moment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from fleetbus.cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus.cli.objects.query import ObjectQuery
from fleetbus.kube.json_fields import text
from fleetbus_proto.resources import CORE

_CLUSTER: Final = "fleetbus.dev/cluster"
_BOOKMARK: Final = "BOOKMARK"
_GONE, _SERVER_ERROR = 410, 500
SILENT_SECONDS: Final = 150
"""A watch has a bookmark each minute."""
_ATTEMPTS: Final = 30
_WAIT_SECONDS: Final = 1.0


class Change(NamedTuple):
    """One change: `ADDED`, `MODIFIED` or `DELETED`, with the object after or before it."""

    kind: str
    item: Item


def follow(api: ApiClient, query: ObjectQuery, found: Found) -> Iterator[Change]:
    """Yield the changes after a list, for ever.

    Args:
        api: the query API, which may be silent for `SILENT_SECONDS`.
        query: the list; it names one cluster or none.
        found: what was listed.

    Raises:
        ApiFailed: the query API does not answer for half a minute, or the watch cannot go on.
    """
    cluster = next(iter(query.clusters), "")
    shown = _Shown(found)
    path, version, failures = _path_of(query, found), found.version, 0
    while True:
        started = version
        try:
            for kind, tree in _events(api.lines(path, _parameters_of(query, version))):
                version, failures = text(tree, "metadata", "resourceVersion") or version, 0
                change = Change(kind, _item_of(tree, cluster))
                if kind != _BOOKMARK and shown.take(change):
                    yield change
        except ApiFailed as e:
            failures += 1
            if 0 < e.status < _SERVER_ERROR or failures > _ATTEMPTS:
                raise
            if failures == 1:
                print(f"warning: {e}; trying again", file=sys.stderr)
        if version == started:  # else it has ended because its time was over
            time.sleep(_WAIT_SECONDS)


def _events(lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield type and object of each event.

    Raises:
        ApiFailed: the watch cannot go on.
    """
    for line in lines:
        if not line.endswith(b"\n"):
            return  # it was cut off
        event = cast("Mapping[str, Any]", json.loads(line))
        tree: dict[str, Any] = event["object"]
        if event["type"] == "ERROR":
            why = f"the watch cannot go on: {tree.get('message')}; run it again"
            raise ApiFailed(why, int(tree.get("code") or _GONE))
        yield str(event["type"]), tree


class _Shown:
    """The objects that were shown: a server that cannot know deletes others for us, too."""

    def __init__(self, found: Found) -> None:
        self._places = set(map(_place_of, found.items))

    def take(self, change: Change) -> bool:
        """Take a change; False if it is of an object that was never shown."""
        place = _place_of(change.item)
        is_known = place in self._places
        if change.kind == "DELETED":
            self._places.discard(place)
            return is_known
        self._places.add(place)
        return True


def _place_of(item: Item) -> tuple[str, str, str]:
    return item.cluster, item.namespace, item.name


def _path_of(query: ObjectQuery, found: Found) -> str:
    group, version = found.resource["group"], found.resource["versions"][0]
    root = f"/api/{version}" if group == CORE else f"/apis/{group}/{version}"
    space = f"/namespaces/{quote(query.namespace, safe='')}" if query.namespace else ""
    cluster = quote(next(iter(query.clusters), "-"), safe="")
    return f"/kube/{cluster}{root}{space}/{found.resource['plural']}"


def _parameters_of(query: ObjectQuery, version: str) -> dict[str, str]:
    asked = {
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "labelSelector": query.selector,
        "fieldSelector": f"metadata.name={query.name}" if query.name else "",
    }
    return {name: value for name, value in asked.items() if value}


def _item_of(tree: dict[str, Any], cluster: str) -> Item:
    marks = cast("dict[str, Any]", tree["metadata"].get("annotations") or {})
    of_fleet = str(marks.pop(_CLUSTER, ""))
    return Item.read({"cluster": cluster or of_fleet, "object": tree})
