"""The objects that a MultiClusterResource asks for, worked out without the product's code.

The campaign uses a small part of the language: ConfigMaps and ServiceAccounts, placement by name,
by label and by exclusion, and `${cluster.name}` and `${cluster.labels.region}` in data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

Labels: TypeAlias = Mapping[str, str]
Json: TypeAlias = dict[str, Any]


class Place(NamedTuple):
    """An object on a cluster; all of the campaign are in one namespace."""

    cluster: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of {self.cluster}"


class Desired(NamedTuple):
    """The objects of a fleet as they are to be."""

    objects: Mapping[Place, Mapping[str, str]]
    """The data that each has."""
    unrendered: frozenset[str]
    """Clusters for which a template cannot be rendered: while there are any, nothing is pruned."""


def placed(spec: Json, clusters: Mapping[str, Labels]) -> set[str]:
    """The clusters of the fleet that a spec names or selects."""
    placement: Json = spec.get("placement") or {}
    named = {cluster["name"] for cluster in placement.get("clusters", [])}
    if selector := placement.get("clusterSelector"):
        labels_asked = selector["matchLabels"].items()
        named |= {name for name, labels in clusters.items() if labels_asked <= labels.items()}
    excluded = {cluster["name"] for cluster in placement.get("exclude", [])}
    return (named & clusters.keys()) - excluded


def desired(spec: Json, clusters: Mapping[str, Labels]) -> Desired:
    """Work out what a spec asks for, in a fleet with these clusters."""
    templates: list[Json] = spec.get("templates") or [spec["template"]]
    objects: dict[Place, dict[str, str]] = {}
    unrendered: set[str] = set()
    for cluster in placed(spec, clusters):
        region = clusters[cluster].get("region")
        for template in templates:
            data = {**template.get("data", {})}
            if region is None and any("labels.region" in value for value in data.values()):
                unrendered.add(cluster)
                break
            name = template["metadata"]["name"]
            objects[Place(cluster, template["kind"], name)] = {
                key: value.replace("${cluster.name}", cluster).replace(
                    "${cluster.labels.region}", region or ""
                )
                for key, value in data.items()
            }
    rendered = {place: data for place, data in objects.items() if place.cluster not in unrendered}
    return Desired(rendered, frozenset(unrendered))
