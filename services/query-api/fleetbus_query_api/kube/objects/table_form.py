"""Tables (meta.k8s.io): the columns of kubectl, rendered by the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fleetbus.snapshot import Entry
from fleetbus_query_api.kube.objects.forms import CLOSING
from fleetbus_query_api.kube.objects.object_bytes import ObjectBytes
from fleetbus_query_api.tables.column import Cell, CellCosts, Column
from fleetbus_query_api.tables.columns import columns_in_list

_CLUSTER: Final = Column(
    "Cluster", description="The cluster of the fleet that has the object."
).definition()


class TableRows:
    """The rows of a Table.

    Args:
        columns: those of the resource.
        of: renders the part of the object that a row has.
        include: that part: None, Metadata or Object.
        version: of the group meta.k8s.io.
    """

    def __init__(
        self, columns: Sequence[Column], of: ObjectBytes, *, include: str, version: str
    ) -> None:
        # Clusters define custom types differently, and not everybody sees all of them (rule A2).
        self.key = ("table", version, include, *columns)
        self._columns = columns
        self._of = of
        self._include = include
        self._version = version
        self._costs = CellCosts()

    def items(self, entries: Sequence[Entry]) -> Callable[[Entry], bytes]:
        """Render the rows of a page of a list."""
        trees = ((entry.cluster, self._of.tree(entry)) for entry in entries)
        columns = columns_in_list(self._columns, trees)
        return lambda entry: self._row(entry, columns(entry.cluster), self._costs)

    def item(self, entry: Entry) -> bytes:
        """One row of an object that is alone in its cluster's part of the answer."""
        return self._row(entry, self._columns, self._costs)

    def _row(self, entry: Entry, columns: Sequence[Column], costs: CellCosts) -> bytes:
        cells = msgspec.json.encode(self._cells(entry, columns, costs))
        if self._include == "None":
            return b'{"cells":%b}' % cells
        is_whole = self._include == "Object"
        obj = self._of.whole(entry) if is_whole else self._of.metadata(entry, self._version)
        return b'{"cells":%b,"object":%b}' % (cells, obj)

    def opening(self, metadata: Mapping[str, Any]) -> bytes:
        """The bytes before the rows."""
        head = {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._version}",
            "metadata": metadata,
            "columnDefinitions": self._definitions(),
        }
        return msgspec.json.encode(head)[:-1] + b',"rows":['

    def bookmark(self, metadata: Mapping[str, Any]) -> bytes:
        """A table without rows."""
        return self.opening(metadata) + CLOSING

    def answer(self, entries: Sequence[Entry]) -> bytes:
        """The table of a get or of an event: a row for each cluster that has the object."""
        version = str(max(entry.counter for entry in entries))
        costs = CellCosts()
        rows = b",".join(self._row(entry, self._columns, costs) for entry in entries)
        return self.opening({"resourceVersion": version}) + rows + CLOSING

    def _cells(self, entry: Entry, columns: Sequence[Column], costs: CellCosts) -> list[Cell]:
        cells = costs.cells(columns, self._of.tree(entry))
        return [entry.cluster, *cells] if self._of.names_cluster else cells

    def _definitions(self) -> list[dict[str, Any]]:
        definitions = [each.definition() for each in self._columns]
        return [_CLUSTER, *definitions] if self._of.names_cluster else definitions
