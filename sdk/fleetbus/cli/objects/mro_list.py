"""Prints `kubectl multicluster list` and `describe` in multi_resource_operator's columns.

The heads are English, and are printed even when there is nothing below them (T19).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus.cli.documents import render_json, render_yaml
from fleetbus.cli.objects.get import (
    ObjectQuery,
    hide_managed_fields,
    render_documents,
    render_items,
    tell_of,
)
from fleetbus.cli.objects.tree import Tree, look, many, number, text
from fleetbus.cli.table import render_table, warn_incomplete
from fleetbus.cli.target import resolve_target
from fleetbus.cli.unknown import UnknownName, require_clusters

_CLUSTERS: Final = frozenset({"cluster", "clusters"})
_CLUSTER_HEAD: Final = ("NAME", "VERSION", "HOST", "PLATFORM", "ISMASTER", "STATUS")
_RULE: Final = "-" * 40

_Cell = Callable[[Tree], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MroQuery:
    """What was typed; an empty text means all."""

    resource: str
    cluster: str
    name: str
    namespace: str
    selector: str
    api_url: str | None


def show_list(asked: MroQuery, output: str) -> int:
    """Print a list, newest first; answers the exit status.

    Raises:
        ConfigError: an option cannot be read, or no query API is known.
    """
    if asked.resource in _CLUSTERS:
        return _show_clusters(asked, output)
    found = _find(asked)
    if found is None:
        return 1
    hide_managed_fields(found)
    match output:
        case "json":
            print(render_items(found))
        case "yaml":
            print(render_documents(found.items))
        case _:
            print(_table(found))
    tell_of(found)
    return 0


def describe(asked: MroQuery, *, show_managed_fields: bool) -> int:
    """Print each hit as YAML with its cluster and a line below it; answers the exit status.

    Raises:
        ConfigError: an option cannot be read, or no query API is known.
    """
    if asked.resource in _CLUSTERS:
        return _show_clusters(asked, "yaml")
    found = _find(asked)
    if found is None:
        return 1
    if not show_managed_fields:
        hide_managed_fields(found)
    for item in found.items:
        print(render_documents([item]))
        print(_RULE)
    tell_of(found)
    return 0


def _find(asked: MroQuery) -> Found | None:
    query = ObjectQuery(
        resource=asked.resource,
        name=asked.name,
        namespace=asked.namespace,
        selector=asked.selector,
        clusters=[asked.cluster] if asked.cluster else [],
        limit=0,
    )
    api = ApiClient(resolve_target(api_url=asked.api_url))
    try:
        found = query.ask(api)
        _tell_of_strangers(api, query.clusters)
    except ApiFailed as e:
        print(f"kubectl-multicluster: {e}", file=sys.stderr)
        return None
    # Stable: objects of the same second stay in the order cluster, namespace, name.
    found.items.sort(key=_created, reverse=True)
    return found


def _tell_of_strangers(api: ApiClient, clusters: Sequence[str]) -> None:
    """Warn of an unknown cluster; multi_resource_operator lists nothing, with status 0."""
    try:
        require_clusters(api, clusters)
    except UnknownName as e:
        print(f"warning: {e}", file=sys.stderr)


def _created(item: Item) -> str:
    return text(item.tree, "metadata", "creationTimestamp")


def _table(found: Found) -> str:
    columns = _COLUMNS.get(found.key, ())
    rows: list[list[str]] = []
    for item in found.items:
        tree = item.tree
        cells = ["<unknown>" if tree is None else cell(tree) for _, cell in columns]
        rows.append([item.cluster, item.name, item.namespace, *cells])
    return render_table(["CLUSTER", "NAME", "NAMESPACE", *(head for head, _ in columns)], rows)


def _at(*path: str) -> _Cell:
    return lambda tree: text(tree, *path)


def _count(*path: str) -> _Cell:
    return lambda tree: str(number(tree, *path))


def _first_container(field: str) -> _Cell:
    def cell(pod: Tree) -> str:
        containers = many(pod, "spec", "containers")
        return text(containers[0], field) if containers else ""

    return cell


_COLUMNS: Final[Mapping[str, Sequence[tuple[str, _Cell]]]] = {
    "core/pods": (
        ("NODE", _at("spec", "nodeName")),
        ("POD IP", _at("status", "podIP")),
        ("STATUS", _at("status", "phase")),
        ("CONTAINER", _first_container("name")),
        ("IMAGE", _first_container("image")),
    ),
    "apps/deployments": (
        ("TOTAL", _count("status", "replicas")),
        ("AVAILABLE", _count("status", "availableReplicas")),
        ("READY", _count("status", "readyReplicas")),
    ),
    "core/configmaps": (("DATA", lambda tree: str(len(look(tree, "data") or ()))),),
}


def _show_clusters(asked: MroQuery, output: str) -> int:
    api = ApiClient(resolve_target(api_url=asked.api_url))
    try:
        answer = api.get("/fleet/v1/clusters")
    except ApiFailed as e:
        print(f"kubectl-multicluster: {e}", file=sys.stderr)
        return 1
    wanted = {name for name in (asked.name, asked.cluster) if name}
    items = [item for item in answer["items"] if wanted <= {item["name"]}]
    if output == "table":
        print(render_table(_CLUSTER_HEAD, list(map(_cluster_row, items))))
    else:
        print((render_json if output == "json" else render_yaml)(items).rstrip())
    shown = {item["name"] for item in items}
    behind = [name for name in answer["incomplete"] if name in shown]
    warn_incomplete(answer["freshness"], behind)
    return 0


def _cluster_row(cluster: Mapping[str, Any]) -> list[str]:
    return [
        cluster["name"],
        cluster["serverVersion"],
        cluster["host"],
        "",  # the platform is not kept in the snapshot
        str(cluster["hub"]).lower(),
        "Running" if cluster["connected"] else cluster["reason"] or "Unreachable",
    ]
