"""Prints `kubectl multicluster list` and `describe` with the columns of multi_resource_operator.

The headers are printed even if the list is empty, as there (rule T19).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.errors import ConfigError
from fleetbus.kube.json_fields import Tree, look, many, number, pairs, text
from fleetbus.process import printer
from fleetbus.process.human_time import render_age
from fleetbus_cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus_cli.documents import render_json, render_yaml
from fleetbus_cli.objects.follow import DELETED, SILENT_SECONDS, follow
from fleetbus_cli.objects.found import (
    hide_managed_fields,
    render_documents,
    render_items,
    warn_of_gaps,
)
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.table import column_widths, render_row, render_table, warn_incomplete
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import UnknownName, require_clusters

_CLUSTERS: Final = frozenset({"cluster", "clusters"})
_CLUSTER_HEAD: Final = ("NAME", "VERSION", "HOST", "PLATFORM", "ISMASTER", "STATUS")
_WIDE_CLUSTER_HEAD: Final = ("LAST ANSWER", "LABELS")
_RULE: Final = "-" * 40

_Cell = Callable[[Tree], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MroQuery:
    """The arguments; an empty field selects all."""

    resource: str
    cluster: str
    name: str
    namespace: str
    selector: str
    api: ApiFlags

    def objects(self) -> ObjectQuery:
        """The same for a list."""
        return ObjectQuery(
            resource=self.resource,
            name=self.name,
            namespace=self.namespace,
            selector=self.selector,
            clusters=[self.cluster] if self.cluster else [],
        )


def show_list(query: MroQuery, output: str) -> int:
    """Print a list, newest first; return the exit status.

    Raises:
        ConfigError: no query API address is set.
    """
    if query.resource in _CLUSTERS:
        return _show_clusters(query, output)
    listing = _find(query)
    if listing is None:
        return 1
    hide_managed_fields(listing)
    match output:
        case "json":
            printer.json_text(render_items(listing))
        case "yaml":
            printer.block(render_documents(listing.items))
        case _:
            head, rows = _cells(listing, is_wide=output == "wide")
            printer.block(render_table(head, rows))
    warn_of_gaps(listing)
    return 0


def watch_list(query: MroQuery, output: str) -> int:
    """Print a list as a table, and then a row for each change, until it is interrupted.

    Raises:
        ConfigError: it is not a table of objects, or no query API address is set.
    """
    if query.resource in _CLUSTERS or output not in {"table", "wide"}:
        raise ConfigError(
            "-w works only with tables of objects, not with clusters, -o json or yaml"
        )
    listing = _find(query)
    if listing is None:
        return 1
    head, rows = _cells(listing, is_wide=output == "wide")
    widths = column_widths(head, rows)
    printer.block(render_table(head, rows), flush=True)
    warn_of_gaps(listing)
    api = ApiClient(query.api.resolve(), timeout_seconds=SILENT_SECONDS)
    try:
        for change in follow(api, query.objects(), listing):
            listing.items = [change.item]
            _, (row,) = _cells(listing, is_wide=output == "wide")
            mark = "   (deleted)" if change.kind == DELETED else ""
            printer.line(f"{render_row(row, widths)}{mark}", flush=True)
    except ApiFailed as e:
        printer.note(f"kubectl-multicluster: {e}")
    return 1


def describe(query: MroQuery, *, show_managed_fields: bool) -> int:
    """Print each object as YAML with its cluster, then a line; return the exit status.

    Raises:
        ConfigError: no query API address is set.
    """
    if query.resource in _CLUSTERS:
        return _show_clusters(query, "yaml")
    listing = _find(query)
    if listing is None:
        return 1
    if not show_managed_fields:
        hide_managed_fields(listing)
    for item in listing.items:
        printer.block(render_documents([item]))
        printer.line(_RULE)
    warn_of_gaps(listing)
    return 0


def _find(query: MroQuery) -> Found | None:
    objects = query.objects()
    api = ApiClient(query.api.resolve())
    try:
        listing = objects.run(api)
        _warn_of_unknown(api, [name for name in objects.clusters if listing.lacks(name)])
    except ApiFailed as e:
        printer.note(f"kubectl-multicluster: {e}")
        return None
    # The sort is stable: objects of the same second stay ordered by cluster, namespace, name.
    listing.items.sort(key=_created, reverse=True)
    return listing


def _warn_of_unknown(api: ApiClient, clusters: Sequence[str]) -> None:
    """Warn of an unknown cluster; multi_resource_operator lists nothing, with status 0."""
    try:
        require_clusters(api, clusters)
    except UnknownName as e:
        printer.note(f"warning: {e}")


def _created(item: Item) -> str:
    return text(item.tree, "metadata", "creationTimestamp")


def _cells(listing: Found, *, is_wide: bool) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table."""
    columns = _COLUMNS.get(listing.key, ())
    if is_wide:
        columns = (*columns, *_WIDE.get(listing.key, ()), ("AGE", _age), ("LABELS", _labels))
    rows: list[list[str]] = []
    for item in listing.items:
        tree = item.tree
        cells = ["<unknown>" if tree is None else cell(tree) for _, cell in columns]
        rows.append([item.cluster, item.name, item.namespace, *cells])
    return ["CLUSTER", "NAME", "NAMESPACE", *(head for head, _ in columns)], rows


def _at(*path: str) -> _Cell:
    return lambda tree: text(tree, *path)


def _count(*path: str) -> _Cell:
    return lambda tree: str(number(tree, *path))


def _age(tree: Tree) -> str:
    return render_age(look(tree, "metadata", "creationTimestamp"))


def _labels(tree: Tree) -> str:
    return pairs(tree, "metadata", "labels")


def _of_all(field: str, *path: str) -> _Cell:
    return lambda tree: ",".join(text(each, field) for each in many(tree, *path))


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

_TEMPLATE: Final = ("spec", "template", "spec", "containers")
_WIDE: Final[Mapping[str, Sequence[tuple[str, _Cell]]]] = {
    "core/pods": (
        ("CONTAINERS", _of_all("name", "spec", "containers")),
        ("IMAGES", _of_all("image", "spec", "containers")),
    ),
    "apps/deployments": (
        ("CONTAINERS", _of_all("name", *_TEMPLATE)),
        ("IMAGES", _of_all("image", *_TEMPLATE)),
        ("SELECTOR", lambda tree: pairs(tree, "spec", "selector", "matchLabels")),
    ),
}
"""Columns of `-o wide` after them, before age and labels; multi_resource_operator has none."""


def _show_clusters(query: MroQuery, output: str) -> int:
    api = ApiClient(query.api.resolve())
    try:
        answer = api.get("/fleet/v1/clusters")
    except ApiFailed as e:
        printer.note(f"kubectl-multicluster: {e}")
        return 1
    names = {name for name in (query.name, query.cluster) if name}
    items = [item for item in answer["items"] if names <= {item["name"]}]
    if output == "table":
        printer.block(render_table(_CLUSTER_HEAD, list(map(_cluster_row, items))))
    elif output == "wide":
        rows = [[*_cluster_row(item), *_wide_cells(item)] for item in items]
        printer.block(render_table((*_CLUSTER_HEAD, *_WIDE_CLUSTER_HEAD), rows))
    elif output == "json":
        printer.json_text(render_json(items))
    else:
        printer.block(render_yaml(items).rstrip())
    item_names = {item["name"] for item in items}
    behind = [name for name in answer["incomplete"] if name in item_names]
    warn_incomplete(answer["freshness"], behind)
    return 0


def _cluster_row(cluster: Mapping[str, Any]) -> list[str]:
    return [
        cluster["name"],
        cluster["serverVersion"],
        cluster["host"],
        cluster["platform"],
        str(cluster["hub"]).lower(),
        "Running" if cluster["connected"] else cluster["reason"] or "Unreachable",
    ]


def _wide_cells(cluster: Mapping[str, Any]) -> list[str]:
    answer = cluster["lastAnswer"]
    return [f"{render_age(answer)} ago" if answer else "never", pairs(cluster, "labels")]
