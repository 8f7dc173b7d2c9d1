"""The documents of discovery: what is served, in the legacy and in the aggregated form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleetbus_proto.resources import CORE
from fleetbus_query_api.catalog.kinds import VERBS, Kind, group_versions

JsonObject = dict[str, Any]
Groups = Mapping[str, Mapping[str, Sequence[Kind]]]
"""Kinds by group and version."""


def find_document(path: str, kinds: Sequence[Kind]) -> JsonObject | None:
    """The document of a path in the legacy form; None if the path is not one of discovery.

    Args:
        path: what follows the cluster.
        kinds: what is served, as `kinds_of` sorts it.
    """
    groups = group_versions(kinds)
    match path.split("/"):
        case [""]:
            return {"paths": _paths(groups)}
        case ["api"]:
            head: JsonObject = {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
            return {**head, "serverAddressByClientCIDRs": []}
        case ["api", "v1"]:
            return _resource_list("v1", groups.get(CORE, {}).get("v1", []))
        case ["apis", *rest]:
            return _find_named(rest, _named(groups))
        case _:
            return None


def _find_named(segments: list[str], groups: Groups) -> JsonObject | None:
    """The document of /apis, /apis/GROUP or /apis/GROUP/VERSION."""
    match segments:
        case []:
            listed = [_group(name, list(versions)) for name, versions in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case [group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, list(groups[group]))}
        case [group, version] if version in groups.get(group, {}):
            return _resource_list(f"{group}/{version}", groups[group][version])
        case _:
            return None


def aggregate(path: str, version: str, kinds: Sequence[Kind]) -> JsonObject:
    """The aggregated document of `api` or `apis`, in a version of its own group."""
    groups = group_versions(kinds)
    chosen = {CORE: groups.get(CORE, {})} if path == "api" else _named(groups)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version}",
        "metadata": {},
        "items": [_discovery_group(name, versions) for name, versions in chosen.items()],
    }


def media_type(version: str) -> str:
    """The media type of the aggregated document."""
    return f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"


def _named(groups: Groups) -> Groups:
    return {name: versions for name, versions in groups.items() if name != CORE}


def _paths(groups: Groups) -> list[str]:
    paths = ["/api", "/api/v1", "/apis", "/openapi/v2", "/openapi/v3", "/version"]
    for group, versions in _named(groups).items():
        paths += [f"/apis/{group}", *(f"/apis/{group}/{version}" for version in versions)]
    return sorted(paths)


def _group(name: str, versions: Sequence[str]) -> JsonObject:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(group_version: str, kinds: Sequence[Kind]) -> JsonObject:
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version}
    return {**head, "resources": [_resource(each) for each in kinds]}


def _resource(each: Kind) -> JsonObject:
    return {
        "name": each.plural,
        "singularName": each.singular,
        "namespaced": each.namespaced,
        "kind": each.kind,
        "verbs": list(VERBS),
        **_optional(each),
    }


def _optional(each: Kind) -> JsonObject:
    fields = {"shortNames": list(each.short_names), "categories": list(each.categories)}
    return {name: value for name, value in fields.items() if value}


def _discovery_group(group: str, versions: Mapping[str, Sequence[Kind]]) -> JsonObject:
    listed = [
        {
            "version": version,
            "resources": [_discovery_resource(each) for each in kinds],
            "freshness": "Current",
        }
        for version, kinds in versions.items()
    ]
    return {"metadata": {} if group == CORE else {"name": group}, "versions": listed}


def _discovery_resource(each: Kind) -> JsonObject:
    group = "" if each.group == CORE else each.group
    return {
        "resource": each.plural,
        "responseKind": {"group": group, "version": each.version, "kind": each.kind},
        "scope": "Namespaced" if each.namespaced else "Cluster",
        "singularResource": each.singular,
        "verbs": list(VERBS),
        **_optional(each),
    }
