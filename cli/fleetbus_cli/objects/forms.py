"""The forms of `fleetbus get -o`: each shows the objects of some queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fleetbus.kube.jsonpath import JsonPathTemplate
from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, Found
from fleetbus_cli.objects.follow import Place
from fleetbus_cli.objects.found import (
    hide_managed_fields,
    render_documents,
    render_items,
    warn_of_gaps,
)
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.objects.server_table import ServerTable
from fleetbus_cli.objects.table_output import print_rows
from fleetbus_cli.objects.templates import CustomColumn, list_of, parse_columns, with_cluster
from fleetbus_cli.progress import Progress
from fleetbus_cli.table import resource_prefix, warn_incomplete, warn_undetermined
from fleetbus_cli.unknown import require_clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Form in which objects are printed.

    Attributes:
        form: table, wide, json, yaml, name, jsonpath=… or custom-columns=….
    """

    form: str = "table"
    show_labels: bool = False
    no_headers: bool = False
    show_managed_fields: bool = False


class Form(ABC):
    """Shows objects; one instance for one command.

    Args:
        api: the query API.
        output: how they are printed.

    Attributes:
        has_several: whether objects of several resources are shown.
    """

    def __init__(self, api: ApiClient, output: Output) -> None:
        self._api = api
        self._output = output
        self.has_several = False

    @abstractmethod
    def show(self, query: ObjectQuery) -> tuple[int, str]:
        """Show the objects of a query.

        Args:
            query: asks for objects of one resource.

        Returns:
            How many there are, and the plural of the resource.

        Raises:
            ApiFailed: no answer, or no such resource.
        """

    def finish(self) -> None:  # noqa: B027 -- most forms have shown everything
        """Show what had to wait for all of them."""


def find_form(api: ApiClient, output: Output) -> Form:
    """Make the form of `-o`.

    Raises:
        ConfigError: its columns are malformed.
        InvalidJsonPath: its JSONPath is malformed.
    """
    name, _, detail = output.form.partition("=")
    match name:
        case "table" | "wide":
            return _Table(api, output)
        case "name":
            return _Names(api, output)
        case "custom-columns":
            return _Columns(api, output, parse_columns(detail))
        case "jsonpath":
            return _Documents(api, output, JsonPathTemplate.parse(detail))
        case _:
            return _Documents(api, output, None)


class _Table(Form):
    """A table that the server renders."""

    def __init__(self, api: ApiClient, output: Output) -> None:
        super().__init__(api, output)
        self._shown = 0

    def show(self, query: ObjectQuery) -> tuple[int, str]:
        is_wide = self._output.form == "wide"
        with Progress(f"reading {query.resource}") as progress:
            table = ServerTable(
                self._api, query, is_wide=is_wide, show_labels=self._output.show_labels
            )
            rows = _cut(table.rows(progress), query.limit)
            count = self._print(table, rows, progress)
        warn_of_table(self._api, table, query, count)
        return count, str(table.resource["plural"])

    def _print(self, table: ServerTable, rows: Iterator[list[str]], progress: Progress) -> int:
        first = next(rows, None)
        if first is None:
            return 0
        prefix = resource_prefix(table.resource) if self.has_several else ""
        if self.has_several and self._shown and not self._output.no_headers:
            printer.line()
        at = table.name_column
        self._shown += 1

        def prefixed() -> Iterator[list[str]]:
            for row in _chain(first, rows):
                row[at] = prefix + row[at]
                yield table.cells(row)

        if printer.is_terminal():  # rows and progress would be written over each other
            progress.clear()
        return print_rows(table.names, prefixed(), no_headers=self._output.no_headers)


class _Names(Form):
    """One word for each object: `eu1/deployments.apps/prod/web`, or `eu1/nodes/n1`."""

    def show(self, query: ObjectQuery) -> tuple[int, str]:
        count = 0
        with Progress(f"reading {query.resource}") as progress:
            table = ServerTable(self._api, query)
            plural = str(table.resource["plural"])
            for row in _cut(table.rows(progress), query.limit):
                printer.line(name_of(table.resource, table.place_of(row)))
                count += 1
        warn_of_table(self._api, table, query, count)
        return count, plural


class _Columns(Form):
    """Columns that the user describes."""

    def __init__(self, api: ApiClient, output: Output, columns: Sequence[CustomColumn]) -> None:
        super().__init__(api, output)
        self._columns = columns
        self._has_head = output.no_headers

    def show(self, query: ObjectQuery) -> tuple[int, str]:
        listing = Found()

        def rows(progress: Progress) -> Iterator[list[str]]:
            for number, item in enumerate(query.each(self._api, listing), 1):
                progress.show(f"{number:,} objects")
                tree = with_cluster(item)
                yield [column.cell(tree) for column in self._columns]

        with Progress(f"reading {query.resource}") as progress:
            head = [column.head for column in self._columns]
            count = print_rows(head, rows(progress), no_headers=self._has_head)
        self._has_head = self._has_head or count > 0
        check_clusters(self._api, query, listing)
        warn_of_gaps(listing)
        return count, str(listing.resource["plural"])


class _Documents(Form):
    """JSON, YAML, or a template over all objects."""

    def __init__(self, api: ApiClient, output: Output, template: JsonPathTemplate | None) -> None:
        super().__init__(api, output)
        self._template = template
        self._found = Found()
        self._is_one = True

    def show(self, query: ObjectQuery) -> tuple[int, str]:
        with Progress(f"reading {query.resource}"):
            listing = query.run(self._api)
        check_clusters(self._api, query, listing)
        if not self._output.show_managed_fields:
            hide_managed_fields(listing)
        self._found.items += listing.items
        self._found.freshness |= listing.freshness
        self._found.incomplete += [n for n in listing.incomplete if n not in self._found.incomplete]
        self._found.as_of = listing.as_of
        self._found.undetermined += listing.undetermined
        self._is_one = self._is_one and bool(query.name)
        warn_of_gaps(listing)
        return len(listing.items), str(listing.resource["plural"])

    def finish(self) -> None:
        items = self._found.items
        if self._template is not None:
            is_one = self._is_one and len(items) == 1
            tree = with_cluster(items[0]) if is_one else list_of(items)
            printer.value(self._template.render(tree))
        elif self._output.form == "json":
            printer.json_text(render_items(self._found))
        elif items:
            printer.block(render_documents(items))


def name_of(resource: Mapping[str, Any], place: Place) -> str:
    """One word for an object: `eu1/deployments.apps/prod/web`."""
    group, plural = resource["group"], str(resource["plural"])
    cluster, namespace, name = place
    full = plural if group == "core" else f"{plural}.{group}"
    return "/".join(filter(None, (cluster, full, namespace, name)))


def _cut(rows: Iterator[list[str]], limit: int) -> Iterator[list[str]]:
    return islice(rows, limit) if limit else rows


def _chain(first: list[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rows


def check_clusters(api: ApiClient, query: ObjectQuery, listing: Found) -> None:
    """Refuse the names of unknown clusters.

    Raises:
        UnknownName: no cluster of the fleet has this name.
    """
    # Who may read objects of a cluster need not have the right to list clusters.
    require_clusters(api, [name for name in query.clusters if listing.lacks(name)])


def warn_of_table(api: ApiClient, table: ServerTable, query: ObjectQuery, count: int) -> None:
    """Warn on stderr of stale clusters, missing bodies and a table that was cut."""
    listing = Found(freshness=dict(table.freshness))
    check_clusters(api, query, listing)
    warn_incomplete(table.freshness, table.incomplete, named=query.clusters)
    warn_undetermined(table.end.get("undetermined", ()))
    for cluster, undecided in table.end.get("undecided", {}).items():
        printer.note(
            f"warning: {cluster}: {undecided} objects without a body, which may match, are left out"
        )
    for item in table.end.get("degraded", ()):
        where = "/".join(filter(None, (item["cluster"], item["namespace"], item["name"])))
        printer.note(f"warning: the snapshot has no body of {where}: {item['degraded']}")
    if query.limit and (table.end.get("hasMore") or (not table.end and count >= query.limit)):
        printer.note(f"Showing the first {count}; there are more.")
