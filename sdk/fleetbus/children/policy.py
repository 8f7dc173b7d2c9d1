"""The settings of a `Children` controller, and the checks of its desired children."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias, cast

from fleetbus.children.marks import OWN_PREFIX
from fleetbus.clusters.info import ClusterInfo
from fleetbus.controller.watch import Watch
from fleetbus.fleet.fleet import Fleet
from fleetbus.kube.client import Object
from fleetbus.reconcile import TerminalError
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import Resource, parse_resource


@dataclass(frozen=True, slots=True)
class Child:
    """A desired child, or, for the propagate function, its current state.

    Attributes:
        cluster: the name of the cluster it lives in.
        object: with apiVersion, kind, metadata.name and, unless its kind is cluster-scoped,
            metadata.namespace.
        resource: like `v1/configmaps`; needed only where the controller has several.
        create_only: create it if it is missing, never update it: for immutable kinds like Jobs.
        problem: for the propagate function, why it is not in sync; `object` is then the desired
            one, unless a child exists.
    """

    cluster: str
    object: Object
    resource: str = ""
    create_only: bool = False
    problem: str = ""


Desired: TypeAlias = Callable[[Object, str, Fleet], Awaitable[Iterable[Child]]]
"""Maps a parent and the name of its cluster to its desired children."""
Propagate: TypeAlias = Callable[[Object, Sequence[Child], Fleet], Awaitable[Object | None]]
"""Maps a parent and its children to a merge patch of the parent, or None."""
Place: TypeAlias = tuple[str, str, str, str]
"""Cluster, resource key, namespace, name."""


@dataclass(frozen=True, slots=True)
class DesiredChild:
    """A checked desired child."""

    child: Child
    resource: Resource

    @property
    def place(self) -> Place:
        """Its place."""
        return place_of(self.child.cluster, self.resource, self.child.object)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The settings of one `Children` controller; see there."""

    controller: str
    parents: Resource
    children: tuple[Resource, ...]
    parent_watch: Watch
    """Its filters are those of parents."""
    is_child_cluster: Callable[[str, ClusterInfo | None], bool]
    finalizer: bool
    retain: bool
    hub_namespace: str
    impersonate: Callable[[str], str] | None
    copy_labels: bool
    recheck: timedelta

    @property
    def field_manager(self) -> str:
        """The field manager of the children."""
        return f"fleetbus-{self.controller}"

    def child_clusters(self, fleet: Fleet) -> list[str]:
        """List the clusters that may have children now."""
        return [one.name for one in fleet.clusters() if self.is_child_cluster(one.name, one)]

    def check(self, answer: object, parent: Object) -> list[DesiredChild]:
        """Check the result of the desired function.

        Raises:
            TerminalError: it is not a valid list of children.
        """
        if not isinstance(answer, Iterable):
            kind = type(answer).__name__
            raise TerminalError(f"@desired returned {kind}, not a list of Child")
        desired = [self._checked(child, parent) for child in cast("Iterable[object]", answer)]
        places = [one.place for one in desired]
        if duplicates := {"/".join(place) for place in places if places.count(place) > 1}:
            raise TerminalError(f"@desired returned duplicates: {', '.join(sorted(duplicates))}")
        return desired

    def _checked(self, child: object, parent: Object) -> DesiredChild:
        if not isinstance(child, Child):
            raise TerminalError(
                f"@desired returned a {type(child).__name__} in its list, not a Child"
            )
        resource = self._resource_of(child)
        metadata: object = child.object.get("metadata")
        named = cast("Object", metadata) if isinstance(metadata, dict) else {}
        if not (child.object.get("apiVersion") and child.object.get("kind") and named.get("name")):
            raise TerminalError("a child needs apiVersion, kind and metadata.name")
        if not self.copy_labels:
            return DesiredChild(child, resource)
        labels = {k: v for k, v in labels_of(parent).items() if not k.startswith(OWN_PREFIX)}
        labelled: Object = named | {"labels": labels | labels_of(child.object)}
        whole: Object = child.object | {"metadata": labelled}
        return DesiredChild(replace(child, object=whole), resource)

    def _resource_of(self, child: Child) -> Resource:
        if not child.resource and len(self.children) == 1:
            return self.children[0]
        try:
            resource = parse_resource(child.resource)
        except InvalidName as e:
            raise TerminalError(f"resource of a child: {e}") from e
        if resource not in self.children:
            raise TerminalError(f"{resource} is not one of the children's resources")
        return resource


def labels_of(obj: Object) -> dict[str, str]:
    """Return the labels of an object."""
    return cast("dict[str, str]", obj["metadata"].get("labels") or {})


def place_of(cluster: str, resource: Resource, obj: Object) -> Place:
    """Return the place of an object."""
    metadata = obj["metadata"]
    return cluster, resource.key, metadata.get("namespace") or "", metadata["name"]
