"""One watch of a controller: a resource, and the filters that its objects must pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from fleetbus.controller.filters import (
    ClusterChoice,
    ClusterFilter,
    Predicate,
    check_plain,
    check_takes,
    choose_clusters,
    name_of,
    read_namespaces,
    read_selector,
)
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.kube.resource_names import with_plural
from fleetbus.kube.selectors import LabelSelector
from fleetbus.reconcile import Request
from fleetbus.run.user_code import calling_user_code
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.events import Event
from fleetbus_proto.resources import Resource, ResourceName, parse_resource

Map: TypeAlias = Callable[
    [Object | None, Request, Fleet], Awaitable[Iterable[Request]] | Iterable[Request]
]
"""From a changed object (None if its body was too large) and its own request to requests.

The cluster of a request is kept: a change in one cluster may enqueue an object of another.
"""

Ignore: TypeAlias = Callable[[Event], bool]
"""Whether a change needs no run, because this process has made it itself."""

ANY_RESOURCE: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """One source of requests; all its filters must hold."""

    resource: Resource | None
    """None stands for every resource."""
    clusters: ClusterChoice
    namespaces: frozenset[str] | None
    selector: LabelSelector
    annotation_selector: LabelSelector
    predicate: Predicate | None
    wake_on_leave: bool
    map: Map | None
    """None for an identity watch: the request names the changed object itself."""
    owned: bool = False
    owner_kind: str = ""
    """With `owned`: only owners of this kind are enqueued; empty means any."""
    per_cluster: bool = False
    """With `owned`: a request names the owner in the cluster of the object, not in its own."""
    ignore: Ignore | None = None
    """With `owned`: changes that enqueue no request."""
    id: int = 0
    """The same for the same declaration, also in another process: records of what was seen through
    it carry this number (rule P8)."""

    @property
    def is_identity(self) -> bool:
        """Whether a request names the changed object itself."""
        return self.map is None and not self.owned

    @property
    def is_filtered(self) -> bool:
        """Whether an object of the resource may not match."""
        return bool(
            self.clusters.text != "*"
            or self.namespaces is not None
            or self.selector
            or self.annotation_selector
            or self.predicate
        )

    def concerns(self, group: str, plural: str) -> bool:
        """Whether this is a watch of the resource."""
        resource = self.resource
        return resource is None or (resource.plural == plural and resource.group == group)

    def selects(self, obj: Object) -> bool:
        """Whether an object passes the namespaces and both selectors."""
        metadata = obj["metadata"]
        return (
            (self.namespaces is None or (metadata.get("namespace") or "") in self.namespaces)
            and self.selector.matches(metadata.get("labels") or {})
            and self.annotation_selector.matches(metadata.get("annotations") or {})
        )

    def passes(self, old: Object | None, new: Object | None) -> bool:
        """Whether the predicate lets a change pass; without one each does."""
        if self.predicate is None:
            return True
        with calling_user_code():
            return bool(self.predicate(old, new))

    @property
    def declaration(self) -> str:
        """The declaration as a string, the same in every process."""
        parts = (
            self.resource.key if self.resource else ANY_RESOURCE,
            self.clusters.text,
            "*" if self.namespaces is None else ",".join(sorted(self.namespaces)),
            str(self.selector),
            str(self.annotation_selector),
            name_of(self.predicate) if self.predicate else "",
            name_of(self.map) if self.map else "",
            f"{self.owned}{self.owner_kind}{'/cluster' if self.per_cluster else ''}",
        )
        return "|".join(parts)


def make_watch(
    resource: str,
    *,
    clusters: ClusterFilter,
    namespaces: Sequence[str] | None,
    selector: str,
    annotation_selector: str,
    predicate: Predicate | None,
    wake_on_leave: bool,
    map: Map | None = None,  # noqa: A002 -- the field's word
    owned: bool = False,
    owner_kind: str = "",
    per_cluster: bool = False,
    ignore: Ignore | None = None,
) -> Watch:
    """Check a declaration; see `Controller.watch` and `Controller.watch_owned`.

    Raises:
        ConfigError: the resource or a filter is invalid.
    """
    if predicate is not None:
        check_plain("predicate", predicate)
        check_takes("predicate", predicate, "old", "new")
    if map is not None:
        if not callable(map):
            raise ConfigError(f"map must be a function, not {map!r}")
        check_takes("map", map, "object", "request", "fleet")
    return Watch(
        resource=None if owned and resource == ANY_RESOURCE else read_resource(resource),
        clusters=choose_clusters(clusters),
        namespaces=read_namespaces(namespaces),
        selector=read_selector("selector", selector),
        annotation_selector=read_selector("annotation_selector", annotation_selector),
        predicate=predicate,
        wake_on_leave=wake_on_leave,
        map=map,
        owned=owned,
        owner_kind=owner_kind,
        per_cluster=per_cluster,
        ignore=ignore,
    )


def read_resource(text: str) -> Resource:
    """Parse a resource like `apps/v1/deployments`.

    Raises:
        ConfigError: it is invalid.
    """
    try:
        resource = parse_resource(text)
    except InvalidName as e:
        raise ConfigError(f"{e}{_suggestion(text)}") from e
    if suggestion := _suggestion(text):
        raise ConfigError(f"resource {text!r} is not a plural{suggestion}")
    return resource


def _suggestion(text: str) -> str:
    """Suggest the plural of a kind, a singular or a short name of Kubernetes' own resources."""
    try:
        name = parse_resource(text.lower())
    except InvalidName:
        return ""
    named = with_plural(ResourceName(name.group, name.version, name.plural))
    if text == text.lower() and named.plural == name.plural:
        return ""
    return f"; did you mean {str(Resource(name.group, name.version, named.plural))!r}?"
