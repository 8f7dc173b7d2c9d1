"""The columns of a resource: those of an API server's Table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from fleetbus.kube.json_fields import Tree
from fleetbus_proto.resources import is_built_in
from fleetbus_query_api.catalog.catalog import KnownResource
from fleetbus_query_api.tables.builtin import BUILTIN
from fleetbus_query_api.tables.column import AGE, CREATED_AT, NAME, Column
from fleetbus_query_api.tables.custom import custom_columns

_PLAIN: Final = (NAME, CREATED_AT)
_CUSTOM: Final = (NAME, replace(AGE, type="date"))


def columns_of(
    resource: KnownResource, clusters: Collection[str] | None = None
) -> Sequence[Column]:
    """Return the columns of a resource as an API server's Table has them, wide ones too.

    CLUSTER and NAMESPACE are not among them: clients add what they need.

    Args:
        resource: the resource.
        clusters: those of the answer; clusters may define a custom resource differently, and then
            the definition that most of these have is taken. None for all that have it.
    """
    columns = BUILTIN.get(resource.key)
    if columns is not None:
        return columns
    if is_built_in(resource.group):
        return _PLAIN
    declared = resource.most_common(lambda definition: tuple(definition.columns), clusters)
    return custom_columns(declared) if declared else _CUSTOM


def columns_in_list(
    columns: Sequence[Column], objects: Iterable[tuple[str, Tree]]
) -> Callable[[str], Sequence[Column]]:
    """Prepare the columns for the objects of one list, some of whose cells may depend on others.

    Args:
        columns: those of the resource.
        objects: all objects of the list with their clusters; read only if a column needs them.

    Returns:
        The columns for the objects of a cluster.
    """
    if all(each.in_list is None for each in columns):
        return lambda _: columns
    trees: dict[str, list[Tree]] = {}
    for cluster, tree in objects:
        trees.setdefault(cluster, []).append(tree)
    prepared = {cluster: [_listed(c, listed) for c in columns] for cluster, listed in trees.items()}
    return lambda cluster: prepared.get(cluster, columns)


def _listed(each: Column, trees: Sequence[Tree]) -> Column:
    return each if each.in_list is None else replace(each, cell=each.in_list(trees))
