"""Runs `fleetbus get` and `describe`: prints objects from the query API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fleetbus.cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus.cli.documents import render_json, render_yaml, without_managed_fields
from fleetbus.cli.objects.columns import columns_of
from fleetbus.cli.table import render_table, warn_incomplete
from fleetbus.cli.target import ApiFlags
from fleetbus.cli.unknown import require_clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectQuery:
    """Selects objects; an empty field selects all."""

    resource: str
    name: str = ""
    namespace: str = ""
    selector: str = ""
    clusters: Sequence[str] = ()
    limit: int = 0

    def run(self, api: ApiClient) -> Found:
        """List the objects from the query API."""
        parameters: dict[str, str | Sequence[str]] = {
            "name": self.name,
            "namespace": self.namespace,
            "labelSelector": self.selector,
            "cluster": self.clusters,
        }
        return api.list(self.resource, {k: v for k, v in parameters.items() if v}, self.limit)


def show_objects(
    query: ObjectQuery, output: str, api: ApiFlags, *, show_managed_fields: bool = False
) -> int:
    """Print objects; return the exit status.

    Raises:
        ConfigError: no query API address is set.
    """
    found = _find(query, api)
    if found is None:
        return 1
    if not show_managed_fields:
        hide_managed_fields(found)
    if text := _render(found, output):
        print(text)
    warn_of_gaps(found)
    if found.items:
        return 0
    if query.name:
        _fail(f"no {found.resource['plural']} {query.name!r}{_where(query)}")
        return 1
    print(f"No {found.resource['plural']} found{_where(query)}.", file=sys.stderr)
    return 0


def describe_objects(
    query: ObjectQuery, api: ApiFlags, *, show_managed_fields: bool = False
) -> int:
    """Print each object as YAML with its cluster; return the exit status.

    Raises:
        ConfigError: no query API address is set.
    """
    return show_objects(query, "yaml", api, show_managed_fields=show_managed_fields)


def hide_managed_fields(found: Found) -> None:
    """Remove metadata.managedFields from every object, as kubectl does."""
    for item in found.items:
        if item.tree is not None:
            trimmed = without_managed_fields(item.tree)
            item.tree.clear()
            item.tree.update(trimmed)


def warn_of_gaps(found: Found) -> None:
    """Warn on stderr of stale clusters, missing bodies and a list that was cut."""
    warn_incomplete(found.freshness, found.incomplete)
    for item in found.items:
        if item.degraded:
            where = "/".join(filter(None, (item.cluster, item.namespace, item.name)))
            print(f"warning: the snapshot has no body of {where}: {item.degraded}", file=sys.stderr)
    if found.is_cut:
        print(f"Showing the first {len(found.items)}; there are more.", file=sys.stderr)


def render_documents(items: Sequence[Item]) -> str:
    """Render YAML documents, each with its cluster in a comment."""
    documents = [
        f"# cluster: {item.cluster}\n{render_yaml(_tree_of(item)).rstrip()}" for item in items
    ]
    return "\n---\n".join(documents)


def render_items(found: Found) -> str:
    """Render the list as JSON, in the form of the query API."""
    items = [
        {"cluster": item.cluster, "object": item.tree}
        | ({"degraded": item.degraded} if item.degraded else {})
        | ({"namespace": item.namespace, "name": item.name} if item.tree is None else {})
        for item in found.items
    ]
    return render_json(
        {"items": items, "freshness": found.freshness, "incomplete": found.incomplete}
    )


def _find(query: ObjectQuery, flags: ApiFlags) -> Found | None:
    api = ApiClient(flags.resolve())
    try:
        found = query.run(api)
        # Who may read objects of a cluster need not have the right to list clusters.
        require_clusters(api, [name for name in query.clusters if found.lacks(name)])
    except ApiFailed as e:
        _fail(str(e))
        return None
    return found


def _render(found: Found, output: str) -> str:
    match output:
        case "json":
            return render_items(found)
        case "yaml":
            return render_documents(found.items)
        case "name":
            return "\n".join(_full_name(item, found) for item in found.items)
        case _:
            return _table(found, wide=output == "wide") if found.items else ""


def _table(found: Found, *, wide: bool) -> str:
    columns = columns_of(found.key, wide=wide)
    place = ["CLUSTER", "NAMESPACE"] if found.resource["namespaced"] else ["CLUSTER"]
    rows: list[list[str]] = []
    for item in found.items:
        where = [item.cluster, item.namespace] if len(place) > 1 else [item.cluster]
        tree = item.tree
        cells = ["<unknown>" if tree is None else column.cell(tree) for column in columns]
        rows.append([*where, item.name, *cells])
    return render_table([*place, "NAME", *(column.head for column in columns)], rows)


def _full_name(item: Item, found: Found) -> str:
    """Render a name like `eu1/deployments.apps/prod/web` or `eu1/nodes/n1`."""
    group = found.resource["group"]
    resource = found.resource["plural"] + ("" if group == "core" else f".{group}")
    return "/".join(filter(None, (item.cluster, resource, item.namespace, item.name)))


def _tree_of(item: Item) -> dict[str, Any]:
    if item.tree is not None:
        return item.tree
    named = {"name": item.name, "namespace": item.namespace}
    return {"metadata": named, "degraded": item.degraded}


def _where(query: ObjectQuery) -> str:
    parts = [f" in namespace {query.namespace}" if query.namespace else ""]
    parts += [f" in {', '.join(query.clusters)}" if query.clusters else ""]
    return "".join(parts)


def _fail(message: str) -> None:
    print(f"fleetbus: {message}", file=sys.stderr)
