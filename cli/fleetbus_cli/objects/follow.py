"""Follows the objects of a list, by a watch of the Kubernetes API that the query API serves.

A watch goes on where the list ended, and where it broke off. After an outage that is longer than
the feed the objects are listed again, and what has changed meanwhile comes as if it were watched.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast
from urllib.parse import quote

from fleetbus.kube.json_fields import text
from fleetbus.process import printer
from fleetbus_cli.answer_shapes import EVENT
from fleetbus_cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.objects.templates import CLUSTER_ANNOTATION
from fleetbus_proto.resources import CORE

Answer = TypeVar("Answer")

_BOOKMARK: Final = "BOOKMARK"
ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"
_GONE, _SERVER_ERROR = 410, 500
SILENT_SECONDS: Final = 150
"""A watch has a bookmark each minute."""
_WAIT_SECONDS: Final = 1.0
MAX_WAIT_SECONDS: Final = 10.0
"""The longest pause between two attempts."""
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


class ListAgain(ApiFailed):
    """The watch cannot go on where it ended: changes were missed."""


class Patience:
    """Waits between attempts, ever longer, and warns of an outage now and then."""

    def __init__(self) -> None:
        self._failures = 0

    def succeed(self) -> None:
        """Note an answer."""
        self._failures = 0

    def fail(self, error: ApiFailed) -> None:
        """Note that the query API is away.

        Raises:
            ApiFailed: it is not, but refuses.
        """
        if 0 < error.status < _SERVER_ERROR:
            raise error
        self._failures += 1
        if self._failures % _WARN_EACH == 1:
            printer.note(f"warning: {error}; trying again")

    def wait(self) -> None:
        """Wait for the next attempt."""
        time.sleep(min(_WAIT_SECONDS * max(self._failures, 1), MAX_WAIT_SECONDS))


def follow(api: ApiClient, query: ObjectQuery, listing: Found) -> Iterator[Change]:
    """Yield the changes of objects after a list, for ever.

    Args: as `follow_events`; `listing` is what was listed.

    Raises:
        ApiFailed: the query API refuses the watch, or the list.
    """
    shown_objects = Shown()
    for item in listing.items:
        shown_objects.list(place_of(item), digest_of(item))
    while True:
        try:
            for kind, tree in follow_events(api, query, Start(listing.resource, listing.version)):
                item = read_item(tree, query)
                if change_type := shown_objects.take(kind, place_of(item), digest_of(item)):
                    yield Change(change_type, item)
        except ListAgain:
            listing = persist(lambda: query.run(api))
        for item in listing.items:
            if change_type := shown_objects.list(place_of(item), digest_of(item)):
                yield Change(change_type, item)
        for place, _ in shown_objects.drop_others(map(place_of, listing.items), listing.incomplete):
            yield Change(DELETED, item_at(place))


def persist(ask: Callable[[], Answer]) -> Answer:
    """Ask until there is an answer, the first time in a while.

    Raises:
        ApiFailed: the query API refuses.
    """
    patience = Patience()
    while True:
        patience.wait()
        try:
            return ask()
        except ApiFailed as e:
            patience.fail(e)


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
        ListAgain: it cannot go on.
        ApiFailed: the query API refuses it.
    """
    path, version, patience = _path_of(query, start), start.version, Patience()
    while True:
        started = version
        try:
            for kind, tree in _events(api, api.lines(path, _parameters_of(query, version), accept)):
                version = text(tree, "metadata", "resourceVersion") or version
                patience.succeed()
                if kind != _BOOKMARK:
                    yield kind, tree
        except ApiFailed as e:
            if e.status == _GONE:
                raise ListAgain(str(e), _GONE) from e
            patience.fail(e)
        if version == started:  # else it has ended because its time was over
            patience.wait()


def _events(api: ApiClient, lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield type and object of each event.

    Raises:
        ApiFailed: the watch cannot go on.
    """
    for line in lines:
        if not line.endswith(b"\n"):
            return  # it was cut off
        event = cast("Mapping[str, Any]", api.check(_read(line), EVENT))
        tree: dict[str, Any] = event["object"]
        if event["type"] == "ERROR":
            why = f"the watch cannot continue: {tree.get('message')}"
            raise ApiFailed(why, int(tree.get("code") or _GONE))
        yield str(event["type"]), tree


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # no event


Place: TypeAlias = tuple[str, str, str]
"""Cluster, namespace and name of an object."""


class Shown:
    """The objects that were shown, with the state of each, as a string.

    A server that cannot know deletes or adds others for us, too.
    """

    def __init__(self) -> None:
        self._states: dict[Place, str] = {}

    def list(self, place: Place, state: str) -> str:
        """Take an object of a list; return the type of its change, empty if there is none."""
        before = self._states.get(place)
        self._states[place] = state
        return ADDED if before is None else MODIFIED if before != state else ""

    def take(self, kind: str, place: Place, state: str) -> str:
        """Take an event; return its type for who has seen this, empty if it shows nothing."""
        if kind == DELETED:
            return kind if self._states.pop(place, None) is not None else ""
        is_known = place in self._states
        self._states[place] = state
        return MODIFIED if is_known else ADDED

    def drop_others(
        self, listed: Iterable[Place], incomplete: Collection[str]
    ) -> Iterator[tuple[Place, str]]:
        """Yield the objects that a list has no more, with their last states.

        Args:
            listed: the places of its objects.
            incomplete: the clusters whose part may lack some: nothing is gone there.
        """
        for place in self._states.keys() - set(listed):
            if place[0] not in incomplete:
                yield place, self._states.pop(place)


def digest_of(item: Item) -> str:
    """The state of an object, without what differs between a list and a watch."""
    tree = dict(item.tree or {})
    metadata = dict(tree.get("metadata") or {})
    for name in ("resourceVersion", "managedFields"):
        metadata.pop(name, None)
    tree["metadata"] = {name: value for name, value in metadata.items() if value}
    content = json.dumps({**tree, "apiVersion": "", "kind": ""}, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def item_at(place: Place) -> Item:
    """An object of which nothing else is known any more."""
    cluster, namespace, name = place
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return Item(cluster, namespace, name, {"metadata": metadata})


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
    parameters = {
        "watch": "1",
        "resourceVersion": version,
        "allowWatchBookmarks": "true",
        "labelSelector": query.selector,
        "fieldSelector": ",".join(filter(None, (named, query.field_selector))),
    }
    return {name: value for name, value in parameters.items() if value}


def read_item(tree: dict[str, Any], query: ObjectQuery) -> Item:
    """Read the object of an event."""
    marks = cast("dict[str, Any]", tree["metadata"].get("annotations") or {})
    of_fleet = str(marks.pop(CLUSTER_ANNOTATION, ""))
    return Item.read({"cluster": _only_cluster(query) or of_fleet, "object": tree})
