"""Reads tables that the query API renders: one JSON line after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
        name_column: where the column with the names of the objects is.
    """

    def __init__(
        self,
        api: ApiClient,
        query: ObjectQuery,
        *,
        is_wide: bool = False,
        show_labels: bool = False,
    ) -> None:
        asked: dict[str, str | Sequence[str]] = {"view": "table", **query.parameters()}
        asked |= {"wide": "true"} if is_wide else {}
        asked |= {"showLabels": "true"} if show_labels else {}
        self._lines = api.lines(query.path, asked)
        head = _read(next(self._lines, b""))
        self.columns: Sequence[Mapping[str, Any]] = head["columns"]
        self.resource: Mapping[str, Any] = head["resource"]
        self.freshness: Mapping[str, Any] = head["freshness"]
        self.incomplete: Sequence[str] = head["incomplete"]
        self.end: Mapping[str, Any] = {}
        self.name_column = [column["format"] for column in self.columns].index("name")

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [str(column["name"]) for column in self.columns]

    def place_of(self, row: Sequence[str]) -> tuple[str, str, str]:
        """The cluster, namespace and name of the object in a row."""
        name = row[self.name_column].removesuffix(" (default)")  # of a StorageClass
        return row[0], row[1] if self.resource["namespaced"] else "", name

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
                yield json.loads(line)
                continue
            last = _read(line)
            if "error" in last:
                raise ApiFailed(f"the query API: {last['error']}")
            self.end = last["end"]
            return
        raise ApiFailed(f"the answer of the query API was cut off after {count} rows; try again")


def _read(line: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except ValueError as e:
        raise ApiFailed("the query API answers no table; is it of this version?") from e
