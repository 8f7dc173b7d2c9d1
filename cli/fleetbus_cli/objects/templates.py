"""Renders objects with `-o jsonpath=…` and `-o custom-columns=…`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fleetbus.errors import ConfigError
from fleetbus.kube.jsonpath import InvalidJsonPath, JsonPath, PathTooCostly, render_value
from fleetbus_cli.api_client import Item
from fleetbus_cli.objects.found import tree_of

CLUSTER_ANNOTATION: Final = "fleetbus.dev/cluster"
"""Names the cluster of each object, as in the query API's /kube/-."""


def with_cluster(item: Item) -> dict[str, Any]:
    """The object with an annotation that names its cluster."""
    tree = tree_of(item)
    metadata: Mapping[str, Any] = tree.get("metadata") or {}
    annotations: Mapping[str, Any] = metadata.get("annotations") or {}
    named = {**annotations, CLUSTER_ANNOTATION: item.cluster}
    return {**tree, "metadata": {**metadata, "annotations": named}}


def list_of(items: Iterable[Item]) -> dict[str, Any]:
    """A List of objects, as kubectl gives it to a template."""
    return {"kind": "List", "apiVersion": "v1", "items": [with_cluster(item) for item in items]}


class CustomColumn(NamedTuple):
    """A column of `custom-columns`."""

    head: str
    path: JsonPath

    def cell(self, tree: Mapping[str, Any]) -> str:
        """Its values; `<none>` without any."""
        try:
            values = self.path.find(tree)
        except PathTooCostly:
            return "<too costly>"
        except InvalidJsonPath:
            values = []
        return ",".join(map(render_value, values)) or "<none>"


def parse_columns(text: str) -> Sequence[CustomColumn]:
    """Parse `NAME:.metadata.name,NODE:.spec.nodeName`.

    Raises:
        ConfigError: a column has no name or no path.
        InvalidJsonPath: a path is malformed.
    """
    columns: list[CustomColumn] = []
    for column in _split(text):
        head, colon, path = column.partition(":")
        if not (head and colon and path):
            raise ConfigError(
                f"custom column {column!r} is not NAME:PATH, as in"
                " NAME:.metadata.name,NODE:.spec.nodeName"
            )
        columns.append(CustomColumn(head, JsonPath.parse(path.strip("{}"))))
    return columns


def _split(text: str) -> list[str]:
    """Split at the commas that are not in brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
