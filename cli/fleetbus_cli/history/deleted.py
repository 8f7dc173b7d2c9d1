"""Reads deletions from the query API, and prints them for `fleetbus get --deleted`."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleetbus.errors import ConfigError
from fleetbus.process import printer
from fleetbus.process.human_time import render_age
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.documents import render_json, render_yaml
from fleetbus_cli.history.answer_parts import lacks, note_beginning, note_window
from fleetbus_cli.objects.arguments import Chosen
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.table import render_table, resource_prefix, warn_incomplete
from fleetbus_cli.target import ApiFlags
from fleetbus_cli.unknown import require_clusters

FORMS: Final = ("table", "json", "yaml", "name")
_HEAD: Final = ("CLUSTER", "NAMESPACE", "NAME", "DELETED", "BY", "EXISTS AGAIN")
MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Deleted:
    """The deletions of one resource.

    Attributes:
        resource: group, plural, kind and so on.
        items: the latest first.
        remaining: how many earlier ones there are.
        answer: the whole answer.
    """

    resource: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    remaining: int
    answer: Mapping[str, Any]


def read_deleted(api: ApiClient, query: ObjectQuery, since: str) -> Deleted:
    """Read the deletions of a resource.

    Raises:
        ApiFailed: no answer, or no such resource.
        ApiRefused: the query is malformed.
    """
    page_query = {name: value for name, value in query.parameters().items() if name != "sort"}
    page_query |= {"since": since, "limit": str(query.limit or MOST)}
    answer = api.get(f"/fleet/v1/deleted/{urllib.parse.quote(query.resource)}", page_query)
    return Deleted(answer["resource"], answer["items"], answer["remaining"], answer)


def show_deleted(
    chosen: Sequence[Chosen], query: ObjectQuery, since: str, output: str, flags: ApiFlags
) -> int:
    """Print deletions; return the exit status.

    Raises:
        ConfigError: no query API address is set, or the output form has no deletions.
        UnknownName: a cluster is not in the fleet.
    """
    if output not in FORMS:
        raise ConfigError(f"--deleted supports only --output {', '.join(FORMS)}")
    api = ApiClient(flags.resolve())
    status = 0
    is_mixed = len(chosen) > 1
    for number, choice in enumerate(chosen):
        if number and output == "table":
            printer.line()
        for name in choice.names or ("",):
            try:
                object_query = ObjectQuery(
                    resource=choice.resource,
                    name=name,
                    namespace=query.namespace,
                    selector=query.selector,
                    field_selector=query.field_selector,
                    clusters=query.clusters,
                    limit=query.limit,
                )
                deleted = read_deleted(api, object_query, since)
                require_clusters(
                    api, [name for name in query.clusters if lacks(deleted.answer, name)]
                )
                prefix = resource_prefix(deleted.resource) if is_mixed else ""
                _print(deleted, output, since, prefix=prefix)
            except ApiFailed as e:
                printer.note(f"fleetbus: {e}")
                status = 1
    return status


def _print(deleted: Deleted, output: str, since: str, *, prefix: str) -> None:
    if output == "json":
        printer.json_text(render_json(deleted.answer))
        return
    if output == "yaml":
        documents = [
            f"# cluster: {item['cluster']}, deleted {item['deletedAt']}\n"
            f"{render_yaml(item['object'] or {}).rstrip()}"
            for item in deleted.items
        ]
        printer.block("\n---\n".join(documents))
    elif output == "name":
        for item in deleted.items:
            printer.line(f"{deleted.resource['plural']}/{item['name']}")
    elif deleted.items:
        printer.block(render_table(_HEAD, [_row(item, prefix) for item in deleted.items]))
    if not deleted.items:
        begin = deleted.answer["since"][:19]
        printer.note(f"No {deleted.resource['plural']} were deleted since {begin}Z.")
    if deleted.remaining:
        printer.note(f"{deleted.remaining} earlier deletions are left out.")
    note_beginning(deleted.answer, since)
    note_window(deleted.answer["window"])
    warn_incomplete(deleted.answer["freshness"], deleted.answer["incomplete"])


def _row(item: Mapping[str, Any], prefix: str) -> list[str]:
    return [
        item["cluster"],
        item["namespace"],
        f"{prefix}{item['name']}",
        f"{render_age(item['deletedAt'])} ago{', or earlier' if item['foundByList'] else ''}",
        name_cause(item["deletedBy"]),
        "yes" if item["existsAgain"] else "no",
    ]


def name_cause(cause: Mapping[str, str] | None) -> str:
    """Who deleted an object, like `MultiClusterResource shop/web`; empty if that is unknown."""
    return f"{cause['kind']} {cause['namespace']}/{cause['name']}" if cause else ""
