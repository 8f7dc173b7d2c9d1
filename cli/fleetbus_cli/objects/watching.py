"""Shows objects, and then every change of them: `fleetbus get -w`, with the habits of kubectl."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from fleetbus.errors import ConfigError
from fleetbus.kube.json_fields import pairs, text
from fleetbus.kube.jsonpath import JsonPathTemplate
from fleetbus.process import printer
from fleetbus_cli.api_client import ApiClient, ApiFailed, Found, Item
from fleetbus_cli.documents import render_json, without_managed_fields
from fleetbus_cli.objects.arguments import Chosen
from fleetbus_cli.objects.follow import (
    DELETED,
    SILENT_SECONDS,
    ListAgain,
    Place,
    Shown,
    Start,
    digest_of,
    follow_events,
    item_at,
    persist,
    place_of,
    read_item,
)
from fleetbus_cli.objects.forms import Output, check_clusters, name_of, warn_of_table
from fleetbus_cli.objects.found import render_documents, tree_of, warn_of_gaps
from fleetbus_cli.objects.get import where_of
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.objects.server_table import ServerTable
from fleetbus_cli.objects.table_output import TablePrinter
from fleetbus_cli.objects.templates import (
    CLUSTER_ANNOTATION,
    CustomColumn,
    parse_columns,
    with_cluster,
)
from fleetbus_cli.objects.types import find_category
from fleetbus_cli.progress import Progress
from fleetbus_cli.target import ApiFlags

_EVENT: Final = "Event"
_TABLES: Final = "application/json;as=Table;v=v1;g=meta.k8s.io"
_MARK: Final = "   (deleted)"
_CELL_END: Final = "\0"
_AGE: Final = re.compile(r"^(?:[0-9]+[smhdy])+$|(?<=\()(?:[0-9]+[smhdy])+(?= ago\)$)")
_ANY_AGE: Final = "<unknown>"
_ONE_TYPE: Final = "--watch follows one type, or one object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Options for printing a watch.

    Attributes:
        is_only: leave out what there is at the beginning.
        has_events: show whether an object was added, modified or deleted.
    """

    is_only: bool = False
    has_events: bool = False


def watch_objects(
    chosen: Sequence[Chosen],
    query: ObjectQuery,
    output: Output,
    watching: Watching,
    flags: ApiFlags,
) -> int:
    """Print the objects and then each change, until it is interrupted; return the exit status.

    Raises:
        ConfigError: more than a resource, or than an object, is chosen; or as `show_objects`.
    """
    query = _query_of_one(chosen, query)
    view = _find_view(output, watching)
    api = ApiClient(flags.resolve())
    try:
        start = view.begin(api, query)
        if query.name and not view.count:
            printer.note(f"fleetbus: no {query.resource} {query.name!r}{where_of(query)}")
            return 1
        printer.flush()
        patient = ApiClient(flags.resolve(), timeout_seconds=SILENT_SECONDS)
        while True:
            try:
                for kind, tree in follow_events(patient, query, start, accept=view.accept):
                    view.take(kind, tree)
                    printer.flush()
            except ListAgain:
                start = persist(lambda: view.list_again(api))
                printer.flush()
    except ApiFailed as e:
        _refuse_category(api, e, query.resource)
        printer.note(f"fleetbus: {e}")
    return 1


def _refuse_category(api: ApiClient, error: ApiFailed, word: str) -> None:
    """Refuse a word that is no type because it stands for several, like `all`.

    Raises:
        ConfigError: it does.
    """
    with suppress(ApiFailed):
        if error.status == HTTPStatus.NOT_FOUND and find_category(api, word):
            raise ConfigError(f"{_ONE_TYPE}; {word!r} is several types")


def _query_of_one(chosen: Sequence[Chosen], query: ObjectQuery) -> ObjectQuery:
    if len(chosen) != 1 or len(chosen[0].names) > 1:
        raise ConfigError(f"{_ONE_TYPE}: `pods`, or `pods web`")
    if query.limit:
        raise ConfigError("--watch cannot be combined with --limit")
    if query.sort:
        printer.note("warning: --sort-by applies only to the objects at the start of the watch")
    name = next(iter(chosen[0].names), "")
    return replace(query, resource=chosen[0].resource, name=name)


class _View(ABC):
    """Prints objects and their changes.

    Args:
        output: in which form.
        watching: which, and whether with the type of the event.
    """

    accept = ""
    """The form of the objects of events."""

    def __init__(self, output: Output, watching: Watching) -> None:
        self._output = output
        self._watching = watching
        self._shown = Shown()
        self._query = ObjectQuery(resource="")
        self._is_first = True
        self.count: int = 0
        """Number of objects at the beginning."""

    def begin(self, api: ApiClient, query: ObjectQuery) -> Start:
        """Print what there is; return where the watch goes on.

        Raises:
            ApiFailed: no answer, or no such resource.
        """
        self._query = query
        with Progress(f"reading {query.resource}") as progress:
            return self._list(api, progress)

    def list_again(self, api: ApiClient) -> Start:
        """Print what has changed meanwhile; return where the watch goes on.

        Raises:
            ApiFailed: as `begin`.
        """
        self._is_first = False
        with Progress(f"reading {self._query.resource} again") as progress:
            return self._list(api, progress)

    @abstractmethod
    def _list(self, api: ApiClient, progress: Progress) -> Start: ...

    @abstractmethod
    def take(self, kind: str, tree: dict[str, Any]) -> None:
        """Print an event."""

    def _is_asked(self, cluster: str) -> bool:
        return not self._query.clusters or cluster in self._query.clusters

    def _seen_in_list(self, place: Place, state: str) -> str:
        """Note an object of a list; return the type of its change, empty if it is not shown."""
        change = self._shown.list(place, state)
        return "" if self._is_first and self._watching.is_only else change

    def _mark(self, kind: str) -> str:
        return _MARK if kind == DELETED and not self._watching.has_events else ""

    def _printer(self, head: Iterable[str]) -> TablePrinter:
        names = [_EVENT, *head] if self._watching.has_events else list(head)
        return TablePrinter(names, no_headers=self._output.no_headers)

    def _row(self, kind: str, cells: Sequence[str]) -> list[str]:
        return [kind, *cells] if self._watching.has_events else list(cells)


class _TableView(_View):
    """A table that the server renders."""

    accept = _TABLES

    def _list(self, api: ApiClient, progress: Progress) -> Start:
        self._is_wide = self._output.form == "wide"
        table = ServerTable(
            api, self._query, is_wide=self._is_wide, show_labels=self._output.show_labels
        )
        self._is_namespaced = bool(table.resource["namespaced"])
        if self._is_first:
            self._table = self._printer(table.names)
        if printer.is_terminal():  # rows and progress would be written over each other
            progress.clear()
        listed: set[Place] = set()
        self._table.print(
            self._row(change, row) for change, row in self._changes(table, listed, progress)
        )
        for _, row in self._shown.drop_others(listed, table.incomplete):
            self._table.print([self._row(DELETED, row.split(_CELL_END))], mark=self._mark(DELETED))
        warn_of_table(api, table, self._query, self.count)
        return Start(table.resource, str(table.end["resourceVersion"]))

    def _changes(
        self, table: ServerTable, listed: set[Place], progress: Progress
    ) -> Iterator[tuple[str, list[str]]]:
        for row in table.rows(progress):
            self.count += 1
            place = table.place_of(row)
            listed.add(place)
            cells = table.cells(row)
            if change := self._seen_in_list(place, self._state_of(cells)):
                yield change, cells

    def _state_of(self, row: Sequence[str]) -> str:
        """The cells but for ages, which grow without a change."""
        at = 3 if self._is_namespaced else 2
        return _CELL_END.join([*row[:at], *(_AGE.sub(_ANY_AGE, cell) for cell in row[at:])])

    def take(self, kind: str, tree: dict[str, Any]) -> None:
        columns: Sequence[dict[str, Any]] = tree["columnDefinitions"]
        is_fleet = columns[0]["name"] == "Cluster" and len(self._query.clusters) != 1
        for row in tree["rows"]:
            obj: dict[str, Any] = row["object"]
            cluster = (
                text(obj, "metadata", "annotations", CLUSTER_ANNOTATION)
                if is_fleet
                else self._query.clusters[0]
            )
            namespace = text(obj, "metadata", "namespace")
            place = cluster, namespace, text(obj, "metadata", "name")
            if not self._is_asked(cluster):
                continue
            cells = [
                _render(cell)
                for column, cell in zip(columns, row["cells"], strict=True)
                if self._is_wide or not column["priority"]
            ]
            head = [cluster, namespace] if self._is_namespaced else [cluster]
            labels = [pairs(obj, "metadata", "labels") or "<none>"]
            printed_cells = [
                *head,
                *cells[is_fleet:],
                *(labels if self._output.show_labels else ()),
            ]
            if change := self._shown.take(kind, place, self._state_of(printed_cells)):
                self._table.print([self._row(change, printed_cells)], mark=self._mark(change))


class _ObjectView(_View):
    """Objects one by one."""

    _start = Start({}, "")

    def _list(self, api: ApiClient, progress: Progress) -> Start:
        listing, listed = Found(), set[Place]()
        for item in self._query.each(api, listing):
            self.count += 1
            progress.show(f"{self.count:,} objects")
            listed.add(place_of(item))
            if change := self._seen_in_list(place_of(item), digest_of(item)):
                progress.clear()
                self._start = Start(listing.resource, listing.version)
                self._print(change, item)
        for place, _ in self._shown.drop_others(listed, listing.incomplete):
            self._print(DELETED, item_at(place))
        check_clusters(api, self._query, listing)
        warn_of_gaps(listing)
        self._start = Start(listing.resource, listing.version)
        return self._start

    def take(self, kind: str, tree: dict[str, Any]) -> None:
        item = read_item(tree, self._query)
        if not self._is_asked(item.cluster):
            return
        if change := self._shown.take(kind, place_of(item), digest_of(item)):
            self._print(change, item)

    @abstractmethod
    def _print(self, kind: str, item: Item) -> None: ...


class _DocumentView(_ObjectView):
    """Documents, words or what a template makes of an object.

    Args:
        output: as for a view.
        watching: as for a view.
        template: of the objects, if there is one.
    """

    def __init__(
        self, output: Output, watching: Watching, template: JsonPathTemplate | None
    ) -> None:
        super().__init__(output, watching)
        self._template = template

    def _print(self, kind: str, item: Item) -> None:
        if item.tree is not None and not self._output.show_managed_fields:
            item = replace(item, tree=without_managed_fields(item.tree))
        has_events = self._watching.has_events
        word = f"{kind} " if has_events else ""
        if self._template is not None:
            printer.value(word + self._template.render(with_cluster(item)))
            return
        match self._output.form:
            case "name":
                printer.line(f"{word}{name_of(self._start.resource, place_of(item))}")
            case "yaml":
                event = f"# event: {kind}\n" if has_events else ""
                printer.block(f"---\n{event}{render_documents([item])}")
            case _:
                event = {"type": kind} if has_events else {}
                document = {**event, "cluster": item.cluster, "object": tree_of(item)}
                printer.json_text(render_json(document))


class _ColumnView(_ObjectView):
    """Columns that the user describes."""

    def __init__(self, output: Output, watching: Watching, columns: Sequence[CustomColumn]) -> None:
        super().__init__(output, watching)
        self._columns = columns
        self._table = self._printer(column.head for column in columns)

    def _print(self, kind: str, item: Item) -> None:
        tree = with_cluster(item)
        cells = [column.cell(tree) for column in self._columns]
        self._table.print([self._row(kind, cells)], mark=self._mark(kind))


def _find_view(output: Output, watching: Watching) -> _View:
    """The view of `-o`.

    Raises: as `find_form`.
    """
    name, _, detail = output.form.partition("=")
    if name in {"table", "wide"}:
        return _TableView(output, watching)
    if name == "custom-columns":
        return _ColumnView(output, watching, parse_columns(detail))
    template = JsonPathTemplate.parse(detail) if name == "jsonpath" else None
    return _DocumentView(output, watching, template)


def _render(cell: object) -> str:
    """A cell as in the tables of the query API, which are texts."""
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if cell is None else str(cell)
