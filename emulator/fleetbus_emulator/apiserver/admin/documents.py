"""The documents of the admin endpoint, as data and as JSON."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from fleetbus_emulator.apiserver.faults import Action, Match
from fleetbus_emulator.apiserver.faults.documents import (
    MATCH_FIELDS,
    REVISION,
    action_from_json,
    camel,
    rule_to_json,
)
from fleetbus_emulator.apiserver.http.partition import Partition
from fleetbus_emulator.apiserver.http.request_log import LoggedRequest
from fleetbus_emulator.apiserver.storage.ground_truth import after

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.cluster import Cluster
    from fleetbus_emulator.apiserver.faults import Rule
    from fleetbus_emulator.apiserver.http.request_log import OpenWatch
    from fleetbus_emulator.apiserver.http.server import ApiServers

Document = TypeVar("Document")


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """One cluster.

    Attributes:
        url: The base URL of its API server.
        uid: The uid of its namespace kube-system.
        resource_version: Its revision.
        listening: Whether it accepts connections.
        partition: How it is cut off; None if it is not.
        open_watches: How many.
        faults: The number of rules that may still apply.
        commits: The number of the latest entry of its ground truth.
        requests: The number of the latest request.
        record_problem: Why its ground truth is not written to a file any more; empty if it is, or
            was never meant to be.
    """

    name: str
    url: str
    uid: str
    resource_version: int
    listening: bool
    partition: Partition | None
    open_watches: int
    faults: int
    commits: int
    requests: int
    record_problem: str


@dataclass(frozen=True, slots=True)
class RuleInfo:
    """A rule as it was when it was asked for; see `Rule`.

    Attributes:
        warning: A warning if it names something not served, most likely misspelt; else empty.
    """

    id: int
    action: Action
    match: Match
    count: int | None
    skip: int
    probability: float
    hits: int
    active: bool
    warning: str = ""


@dataclass(frozen=True, slots=True)
class WatchInfo:
    """An open watch.

    Attributes:
        sent: How many lines it has sent.
        behind: How many events of its type it has not looked at yet.
    """

    group: str
    resource: str
    namespace: str | None
    user_agent: str
    opened: datetime
    sent: int
    behind: int


@dataclass(frozen=True, slots=True)
class RequestPage:
    """A part of the log of requests.

    Attributes:
        requests: The oldest first.
        oldest: The number of the oldest that memory holds; 0 if there is none.
    """

    requests: list[LoggedRequest]
    oldest: int


def cluster_info(servers: ApiServers, name: str) -> ClusterInfo:
    """The document about a cluster."""
    cluster = servers.clusters[name]
    return ClusterInfo(
        name=name,
        url=servers.url(name),
        uid=cluster.uid,
        resource_version=cluster.resource_version,
        listening=servers.is_listening(name),
        partition=servers.partition_of(name),
        open_watches=cluster.open_watches,
        faults=sum(rule.active for rule in cluster.faults.list()),
        commits=cluster.truth.last,
        requests=cluster.requests[-1].number if cluster.requests else 0,
        record_problem=cluster.truth.record_problem,
    )


def watch_info(open_watch: OpenWatch) -> WatchInfo:
    """The document about a watch."""
    return WatchInfo(
        group=open_watch.seen.group,
        resource=open_watch.seen.plural,
        namespace=open_watch.seen.namespace,
        user_agent=open_watch.seen.user_agent,
        opened=open_watch.opened,
        sent=open_watch.watch.sent,
        behind=open_watch.watch.behind,
    )


def request_page(cluster: Cluster, since: int, limit: int) -> RequestPage:
    """The requests behind a number."""
    requests = after(cluster.requests, since, limit)
    return RequestPage(requests, cluster.requests[0].number if cluster.requests else 0)


def rule_document(cluster: Cluster, rule: Rule) -> dict[str, Any]:
    """A rule as JSON, with a warning if it names what the cluster does not serve."""
    warning = cluster.unserved_warning(rule.match)
    return rule_to_json(rule) | ({"warning": warning} if warning else {})


def encode(document: Any) -> bytes:
    """A dataclass, a dict or a list of them as JSON, names in camel case."""
    return orjson.dumps(document, default=_plain, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {
            camel(field.name): str(item) if field.name == REVISION else item
            for field in fields(value)
            for item in [getattr(value, field.name)]
        }
    if isinstance(value, Mapping):  # the query of a request as aiohttp has it
        return dict(cast("Mapping[str, str]", value))
    raise TypeError(value)


def decode(cls: type[Document], document: Mapping[str, Any]) -> Document:
    """A dataclass from its JSON.

    Raises:
        KeyError: A field is missing.
    """
    hints = typing.get_type_hints(cls)
    return cls(**{name: _read(hint, document[camel(name)]) for name, hint in hints.items()})


def _read(hint: Any, value: Any) -> Any:
    if hint in _READERS:
        return _READERS[hint](value)
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    if typing.get_origin(hint) is list:
        return [decode(typing.get_args(hint)[0], item) for item in value]
    return value


_READERS: dict[Any, Callable[[Any], Any]] = {
    int: int,
    datetime: datetime.fromisoformat,
    Partition | None: lambda value: value and Partition(value),
}


def decode_rule(document: Mapping[str, Any]) -> RuleInfo:
    """A rule from its JSON, which `rule_document` made."""
    outcome = ("id", "hits", "active", "warning")
    rule_fields = {name: value for name, value in document.items() if name not in outcome}
    action, options = action_from_json(rule_fields)
    match = {kind.name: options.pop(kind.name, None) for kind in MATCH_FIELDS.values()}
    return RuleInfo(
        action=action,
        match=Match(**match),
        count=options.get("count"),
        skip=options["skip"],
        probability=options["probability"],
        id=document["id"],
        hits=document["hits"],
        active=document["active"],
        warning=document.get("warning", ""),
    )
