"""Streams a table: one JSON line for the columns, one for each row, one for the end.

However many rows there are, a page of objects is all that is held, and a client that reads slowly
is waited for. A client that has not read the last line has not read the whole table.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

import msgspec
import structlog
from redis.exceptions import RedisError
from starlette.responses import StreamingResponse

from fleetbus.errors import FleetbusError
from fleetbus.kube.json_fields import Tree, pairs
from fleetbus.kube.selectors import FieldSelector
from fleetbus.kube.trees import read_tree
from fleetbus.process.human_time import parse_time
from fleetbus.snapshot import Entry, ListQuery
from fleetbus_query_api.fields.list_page import ListPage, Pages
from fleetbus_query_api.fields.order import SortKey, parse_sort
from fleetbus_query_api.fields.undetermined import Undetermined
from fleetbus_query_api.limits.time_slices import TimeSlices
from fleetbus_query_api.objects.listing import (
    ObjectListing,
    describe_resource,
)
from fleetbus_query_api.requests.parameters import ListParameters
from fleetbus_query_api.requests.user import User
from fleetbus_query_api.responses.problem import BadRequestProblem
from fleetbus_query_api.responses.render import FIXED_HEADERS, SLICE, body_of, render_freshness
from fleetbus_query_api.tables.column import (
    LONGEST_CELL,
    NONE,
    UNKNOWN,
    Cell,
    CellCosts,
    Column,
    ages_at,
)
from fleetbus_query_api.tables.columns import columns_in_list, columns_of

log = structlog.get_logger()

NDJSON: Final = "application/x-ndjson"
PAGE: Final = 500
"""Objects that are read at a time."""
_CHOSEN_PAGE: Final = 5_000
"""The same where they are selected or sorted by fields; the bytes of a page are bounded anyhow."""
_NAMED: Final = 20
"""Objects without a body that the end of a table names."""

_encode: Final = msgspec.json.Encoder().encode


class TableListing:
    """Answers requests for tables.

    Args:
        listing: reads the objects.
        slices: run the rendering.
    """

    def __init__(self, *, listing: ObjectListing, slices: TimeSlices) -> None:
        self._listing = listing
        self._slices = slices

    async def list(
        self, user: User, resource: str, parameters: ListParameters
    ) -> StreamingResponse:
        """Stream the objects of a resource as rows.

        Raises:
            BadRequestProblem: a selector has too many requirements, or there are `fields`.
            InvalidName: the resource name is malformed.
            InvalidSelector: a selector is malformed.
            InvalidToken: the continue token is malformed, or was issued for a different query.
            ExpiredToken: the continue token is of a lost store.
            NotFoundProblem: no cluster has this resource, or the user may list it in none.
            HistoryError, BusError, UnavailableProblem: as `ObjectListing.source`.
        """
        if parameters.fields:
            raise BadRequestProblem("a table has the columns of kubectl: leave `fields` out")
        sort = parse_sort(parameters.sort)
        scope = await self._listing.select(user, resource, parameters)
        known_resource = scope.readable.resource
        columns = [
            column
            for column in columns_of(known_resource, scope.query.clusters)
            if parameters.wide or not column.priority
        ]
        query = replace(
            scope.query, limit=PAGE, continue_token=parameters.continue_token, count=False
        )
        limit = parameters.limit if "limit" in parameters.model_fields_set else None
        pages = await self._listing.source(parameters.as_of)
        chosen = _Selected(pages, query, scope.fields, sort, limit)
        first = await chosen.page(query, 0)  # what is refused is refused before the head
        members = await pages.members(query)
        rows = _Rows(
            columns,
            is_namespaced=known_resource.namespaced,
            show_labels=parameters.show_labels,
            shown_at=parse_time(members.get("asOf")),
        )
        head = {
            "columns": rows.definitions(),
            "resource": describe_resource(known_resource),
            **members,
            **render_freshness(scope.freshness),
        }
        return StreamingResponse(
            self._stream(head, rows, chosen, first),
            headers=FIXED_HEADERS,
            media_type=NDJSON,
        )

    async def _stream(
        self, head: dict[str, Any], rows: _Rows, chosen: _Selected, result: ListPage
    ) -> AsyncGenerator[bytes]:
        yield _encode(head) + b"\n"
        undecided: dict[str, int] = {}
        undetermined = Undetermined()
        version = result.page.counter
        while True:
            # One object by its name is a get, which knows of no others.
            line = rows.lines(result.page.entries if chosen.query.name is None else ())
            async for lines in self._render(line, result.page.entries):
                yield lines
            for (
                cluster,
                count,
            ) in result.undecided.items():  # each page counts all that it looked at
                undecided[cluster] = max(undecided.get(cluster, 0), count)
            undetermined.add(result.undetermined)
            token = result.page.continue_token
            if not token or chosen.limit == rows.count:
                break
            try:
                result = await chosen.page(replace(chosen.query, continue_token=token), rows.count)
            except (FleetbusError, RedisError) as e:  # the status is sent already
                log.warning("table_interrupted", error=str(e))
                yield _encode({"error": f"interrupted after {rows.count} rows: {e}"}) + b"\n"
                return
        end = {
            "rows": rows.count,
            "hasMore": bool(token),
            "continue": token,
            "resourceVersion": str(version),
            "undecided": undecided,
            "degraded": rows.degraded,
        }
        if unknown := undetermined.render():
            end["undetermined"] = unknown
        yield _encode({"end": end}) + b"\n"

    async def _render(
        self, line: Callable[[Entry], bytes], entries: Sequence[Entry]
    ) -> AsyncGenerator[bytes]:
        """Render rows, and yield them whenever they fill a slice of the answer."""
        lines, size = list[bytes](), 0

        def take(entry: Entry) -> bool:
            nonlocal size
            lines.append(line(entry))
            size += len(lines[-1])
            return size >= SLICE

        left = iter(entries)
        while await self._slices.run(take, left):
            yield b"".join(lines)
            lines, size = [], 0
        if lines:
            yield b"".join(lines)


@dataclass(frozen=True, slots=True)
class _Selected:
    """The rows that a table shows.

    Attributes:
        pages: finds its pages.
        limit: how many rows; None for all.
    """

    pages: Pages
    query: ListQuery
    fields: FieldSelector
    sort: Sequence[SortKey]
    limit: int | None

    async def page(self, query: ListQuery, count: int) -> ListPage:
        """Find a page, after so many rows."""
        # Each page of a selection looks at all objects anew, so that it had better be a large one.
        most = _CHOSEN_PAGE if self.fields or self.sort else PAGE
        size = most if self.limit is None else min(self.limit - count, most)
        return await self.pages.page(replace(query, limit=size), self.fields, self.sort)


class _Rows:
    """Renders the rows of one table, and counts them.

    Args:
        columns: those of the resource that are shown.
        is_namespaced: whether there is a column for the namespace.
        show_labels: whether there is one for the labels.
        shown_at: the time that ages are as of; None for now.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        is_namespaced: bool,
        show_labels: bool,
        shown_at: datetime | None,
    ) -> None:
        self._columns = columns
        self._is_namespaced = is_namespaced
        self._show_labels = show_labels
        self._shown_at = shown_at
        self._costs = CellCosts()
        self.count = 0
        self.degraded: list[dict[str, str]] = []
        """Objects of which only the name is shown, because the body is unknown; not all of many."""

    def definitions(self) -> list[dict[str, Any]]:
        """The columns, as in the first line."""
        columns = [Column("Cluster", description="The cluster of the object.")]
        if self._is_namespaced:
            columns.append(Column("Namespace"))
        columns += self._columns
        if self._show_labels:
            columns.append(Column("Labels"))
        return [each.definition() for each in columns]

    def lines(self, entries: Sequence[Entry]) -> Callable[[Entry], bytes]:
        """Render the entries of a page as JSON lines: strings."""
        trees = ((e.cluster, tree) for e in entries if (tree := _tree_of(e)) is not None)
        columns_of_cluster = columns_in_list(self._columns, trees)

        def line(entry: Entry) -> bytes:
            self.count += 1
            head = [entry.cluster, entry.namespace] if self._is_namespaced else [entry.cluster]
            cells = self._cells(entry, columns_of_cluster(entry.cluster))
            return _encode(head + cells) + b"\n"

        return line

    def _cells(self, entry: Entry, columns: Sequence[Column]) -> list[str]:
        tree = _tree_of(entry)
        if tree is None:
            if len(self.degraded) < _NAMED:
                self.degraded.append(
                    {
                        "cluster": entry.cluster,
                        "namespace": entry.namespace,
                        "name": entry.name,
                        "degraded": entry.degraded or "absent",
                    }
                )
            cells = [entry.name if c.format == "name" else UNKNOWN for c in self._columns]
            return [*cells, UNKNOWN] if self._show_labels else cells
        with ages_at(self._shown_at):
            cells = [_render(cell) for cell in self._costs.cells(columns, tree)]
        if self._show_labels:
            cells.append((pairs(tree, "metadata", "labels") or NONE)[:LONGEST_CELL])
        return cells


def _tree_of(entry: Entry) -> Tree | None:
    """The object; None without a body that can be read."""
    body = body_of(entry)
    try:
        tree = read_tree(body) if body else None
    except (ValueError, RecursionError):
        return None
    return cast("Tree", tree) if isinstance(tree, dict) else None


def _render(cell: Cell) -> str:
    """Render a cell as kubectl does."""
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
