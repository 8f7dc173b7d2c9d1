"""Chooses the clusters of a placement: by name and by labels, less the excluded ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetbus_distributor.render.spec import Placement
from fleetbus_distributor.selectors import LabelSelector, Operator, Requirement


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster of the fleet, as placement sees it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Placed:
    """The chosen clusters, and names that are not in the fleet."""

    targets: list[Member]
    unknown: list[str]


def place(placement: Placement, members: Iterable[Member], hub: str) -> Placed:
    """Choose the clusters.

    An empty placement means the hub only (rule T18). A name that is not in the fleet waits until it
    joins.

    Args:
        placement: of the spec.
        members: the fleet, the hub included when it is a member.
        hub: the name of the hub; "" if there is none, so that an empty placement chooses nothing.
    """
    by_name = {member.name: member for member in members}
    chosen = _wanted(placement, by_name, hub)
    excluded = {cluster.name for cluster in placement.exclude}
    names = [name for name in chosen if name not in excluded]
    return Placed(
        targets=[by_name[name] for name in sorted(names) if name in by_name],
        unknown=sorted(name for name in names if name not in by_name),
    )


def _wanted(placement: Placement, by_name: Mapping[str, Member], hub: str) -> set[str]:
    if not placement.clusters and placement.cluster_selector is None:
        return {hub} if hub else set()
    names = {cluster.name for cluster in placement.clusters}
    selector = placement.cluster_selector
    if selector is not None:
        names |= {name for name, member in by_name.items() if matches(selector, member.labels)}
    return names


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether labels match a selector, as in Kubernetes; an empty one matches everything."""
    exact = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return exact and all(_holds(requirement, labels) for requirement in selector.match_expressions)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case Operator.IN:
            return value is not None and value in requirement.value_set
        case Operator.NOT_IN:
            return value is None or value not in requirement.value_set
        case Operator.EXISTS:
            return value is not None
        case Operator.DOES_NOT_EXIST:
            return value is None
