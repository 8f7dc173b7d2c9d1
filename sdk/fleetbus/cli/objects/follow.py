"""Follows the objects of a list, by a watch of the Kubernetes API that the query API serves.

A watch goes on where the list ended, and where it broke off, however long the query API is away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote

from fleetbus.cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus.cli.objects.query import ObjectQuery
from fleetbus.cli.objects.templates import CLUSTER_ANNOTATION
from fleetbus.kube.json_fields import text
from fleetbus.process import printer
from fleetbus_proto.resources import CORE

_BOOKMARK: Final = "BOOKMARK"
ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
_GONE, _SERVER_ERROR = 410, 500
SILENT_SECONDS: Final = 150
"""A watch has a bookmark each minute."""
_WAIT_SECONDS: Final = 1.0
_MAX_WAIT_SECONDS: Final = 10.0
_WARN_EACH: Final = 30
"""Failures in a row: every five minutes."""


class Change(NamedTuple):
    """One change: `ADDED`, `MODIFIED` or `DELETED`, with the object after or before it."""

    kind: str
    item: Item


class Start(NamedTuple):
    """The resource of a list, and the version of the snapshot from which a watch goes on."""

    resource: Mapping[str, Any]
    version: str


def follow(api: ApiClient, query: ObjectQuery, found: Found) -> Iterator[Change]:
    """Yield the changes of objects after a list, for ever.

    Args: as `follow_events`; `found` is what was listed.

    Raises: as `follow_events`.
    """
    shown = Shown()
    for item in found.items:
        shown.note(place_of(item))
    for kind, tree in follow_events(api, query, Start(found.resource, found.version)):
        item = read_item(tree, query)
        if seen := shown.take(kind, place_of(item)):
            yield Change(seen, item)


def follow_events(
    api: ApiClient, query: ObjectQuery, start: Start, *, accept: str = ""
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events after a list, for ever: their type and object.

    Args:
        api: the query API, which may be silent for `SILENT_SECONDS`.
        query: the list; of several clusters, those of all come.
        start: where it ended.
        accept: the form of the objects; JSON if it is empty.

    Raises:
        ApiFailed: the query API refuses the watch, or it cannot go on.
    """
    path, version, failures = _path_of(query, start), start.version, 0
    while True:
        started = version
        try:
            for kind, tree in _events(api.lines(path, _parameters_of(query, version), accept)):
                version, failures = text(tree, "metadata", "resourceVersion") or version, 0
                if kind != _BOOKMARK:
                    yield kind, tree
        except ApiFailed as e:
            if 0 < e.status < _SERVER_ERROR:
                raise
            failures += 1
            if failures % _WARN_EACH == 1:
                printer.note(f"warning: {e}; trying again")
        if version == started:  # else it has ended because its time was over
            time.sleep(min(_WAIT_SECONDS * max(failures, 1), _MAX_WAIT_SECONDS))


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


Place: TypeAlias = tuple[str, str, str]
"""Cluster, namespace and name of an object."""


class Shown:
    """The objects that were shown: a server that cannot know deletes or adds others for us, too."""

    def __init__(self) -> None:
        self._places: set[Place] = set()

    def note(self, place: Place) -> None:
        """Note an object that was listed."""
        self._places.add(place)

    def take(self, kind: str, place: Place) -> str:
        """Take an event; return its type for who has seen this, empty if it shows nothing."""
        is_known = place in self._places
        if kind == DELETED:
            self._places.discard(place)
            return kind if is_known else ""
        self._places.add(place)
        return MODIFIED if is_known else ADDED


def place_of(item: Item) -> Place:
    """Where an object is."""
    return item.cluster, item.namespace, item.name


def _path_of(query: ObjectQuery, start: Start) -> str:
    group, version = start.resource["group"], start.resource["versions"][0]
    root = f"/api/{version}" if group == CORE else f"/apis/{group}/{version}"
    space = f"/namespaces/{quote(query.namespace, safe='')}" if query.namespace else ""
    cluster = quote(_only_cluster(query) or "-", safe="")
    return f"/kube/{cluster}{root}{space}/{start.resource['plural']}"


def _only_cluster(query: ObjectQuery) -> str:
    """The only cluster of a list; empty if there are several."""
    return query.clusters[0] if len(query.clusters) == 1 else ""


def _parameters_of(query: ObjectQuery, version: str) -> dict[str, str]:
    named = f"metadata.name={query.name}" if query.name else ""
    asked = {
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "labelSelector": query.selector,
        "fieldSelector": ",".join(filter(None, (named, query.field_selector))),
    }
    return {name: value for name, value in asked.items() if value}


def read_item(tree: dict[str, Any], query: ObjectQuery) -> Item:
    """Read the object of an event."""
    marks = cast("dict[str, Any]", tree["metadata"].get("annotations") or {})
    of_fleet = str(marks.pop(CLUSTER_ANNOTATION, ""))
    return Item.read({"cluster": _only_cluster(query) or of_fleet, "object": tree})
