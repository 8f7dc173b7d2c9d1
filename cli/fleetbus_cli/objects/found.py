"""Objects that were listed: as JSON, as YAML, and what is incomplete about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetbus.process import printer
from fleetbus_cli.api_client import Found, Item
from fleetbus_cli.documents import render_json, render_yaml, without_managed_fields
from fleetbus_cli.table import warn_incomplete, warn_undetermined


def hide_managed_fields(listing: Found) -> None:
    """Remove metadata.managedFields from every object, as kubectl does."""
    for item in listing.items:
        if item.tree is not None:
            trimmed = without_managed_fields(item.tree)
            item.tree.clear()
            item.tree.update(trimmed)


def warn_of_gaps(listing: Found) -> None:
    """Warn on stderr of stale clusters, missing bodies and a list that was cut."""
    warn_incomplete(listing.freshness, listing.incomplete)
    warn_undetermined(listing.undetermined)
    for item in listing.items:
        if item.degraded:
            where = "/".join(filter(None, (item.cluster, item.namespace, item.name)))
            printer.note(f"warning: the snapshot has no body of {where}: {item.degraded}")
    if listing.is_cut:
        printer.note(f"Showing the first {len(listing.items)}; there are more.")


def render_documents(items: Sequence[Item]) -> str:
    """Render YAML documents, each with its cluster in a comment."""
    documents = [
        f"# cluster: {item.cluster}\n{render_yaml(tree_of(item)).rstrip()}" for item in items
    ]
    return "\n---\n".join(documents)


def render_items(listing: Found) -> str:
    """Render the list as JSON, in the form of the query API."""
    items = [
        {"cluster": item.cluster, "object": item.tree}
        | ({"degraded": item.degraded} if item.degraded else {})
        | ({"namespace": item.namespace, "name": item.name} if item.tree is None else {})
        for item in listing.items
    ]
    past = {"asOf": listing.as_of, "undetermined": listing.undetermined} if listing.as_of else {}
    return render_json(
        {"items": items, "freshness": listing.freshness, "incomplete": listing.incomplete, **past}
    )


def tree_of(item: Item) -> dict[str, Any]:
    """The object; without a body, what is known of it."""
    if item.tree is not None:
        return item.tree
    named = {"name": item.name, "namespace": item.namespace}
    return {"metadata": named, "degraded": item.degraded}
