"""Reads tables that the query API renders: one JSON line after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleetbus_cli.answer_shapes import TABLE_END, TABLE_HEAD
from fleetbus_cli.api_client import ApiClient, ApiFailed
from fleetbus_cli.objects.query import ObjectQuery
from fleetbus_cli.progress import Progress


class ServerTable:
    """One table; its rows are read when they are needed.

    Attributes:
        resource: group, plural, kind and so on.
        freshness: of each cluster.
        incomplete: the clusters whose part may be incomplete or stale.
        end: the last line, once all rows are read.
        name_column: where a row has the name of its object, be it shown or not.
    """

    def __init__(
        self,
        api: ApiClient,
        query: ObjectQuery,
        *,
        is_wide: bool = False,
        show_labels: bool = False,
    ) -> None:
        parameters: dict[str, str | Sequence[str]] = {"view": "table", **query.parameters()}
        parameters |= {"wide": "true"} if is_wide else {}
        parameters |= {"showLabels": "true"} if show_labels else {}
        self._check = api.check
        self._lines = api.lines(query.path, parameters)
        head = api.check(_read(next(self._lines, b"")), TABLE_HEAD)
        if (at := _name_column(head)) is None:  # of Events only a wide table has it
            self._lines.close()
            self._lines = api.lines(query.path, {**parameters, "wide": "true"})
            head = api.check(_read(next(self._lines, b"")), TABLE_HEAD)
            if (at := _name_column(head)) is None:
                raise ApiFailed("the query API returned a table without names")
        self.name_column = at
        self._shown = [
            number
            for number, column in enumerate(head["columns"])
            if is_wide or not column["priority"]
        ]
        self.columns: Sequence[Mapping[str, Any]] = [head["columns"][at] for at in self._shown]
        self.resource: Mapping[str, Any] = head["resource"]
        self.freshness: Mapping[str, Any] = head["freshness"]
        self.incomplete: Sequence[str] = head["incomplete"]
        self.end: Mapping[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [str(column["name"]) for column in self.columns]

    def place_of(self, row: Sequence[str]) -> tuple[str, str, str]:
        """The cluster, namespace and name of the object in a row."""
        name = row[self.name_column].removesuffix(" (default)")  # of a StorageClass
        return row[0], row[1] if self.resource["namespaced"] else "", name

    def cells(self, row: Sequence[str]) -> list[str]:
        """The cells of a row that are shown."""
        return [row[at] for at in self._shown]

    def rows(self, progress: Progress) -> Iterator[list[str]]:
        """Read the rows.

        Raises:
            ApiFailed: they end before the last line, so that some are missing.
        """
        count = 0
        for line in self._lines:
            if line.startswith(b"["):
                count += 1
                progress.show(f"{count:,} rows")
                yield self._check(_read(line), [str])
                continue
            last = _read(line)
            if isinstance(last, dict) and "error" in last:
                raise ApiFailed(f"the query API: {last['error']}")
            self.end = self._check(last, TABLE_END)["end"]
            return
        raise ApiFailed(f"the answer of the query API was cut off after {count} rows; try again")


def _name_column(head: Mapping[str, Any]) -> int | None:
    """Find the names: by the format, which a type of Kubernetes lacks, or by the title."""
    columns: Sequence[Mapping[str, Any]] = head["columns"]
    for field in ("format", "name"):
        for at, column in enumerate(columns):
            if str(column[field]).lower() == "name":
                return at
    return None


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as e:
        raise ApiFailed(
            "the query API returned no table; does it have the version of this command?"
        ) from e
