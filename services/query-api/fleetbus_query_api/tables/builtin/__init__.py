"""The columns of Kubernetes' own resources: names, order and cells are those of API servers.

They follow Kubernetes 1.37, whatever the version of a cluster is: an API server renders the cells
itself, and its answers have no rule from which they could be computed here. The printers of
Kubernetes have written the tables that `tests/query_api/tables` compares with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleetbus_query_api.tables.builtin import (
    admission,
    cluster,
    definitions,
    network,
    pods,
    rights,
    scheduling,
    storage,
    workloads,
)
from fleetbus_query_api.tables.column import Column

BUILTIN: Final[Mapping[str, Sequence[Column]]] = {
    **admission.COLUMNS,
    **cluster.COLUMNS,
    **definitions.COLUMNS,
    **network.COLUMNS,
    **pods.COLUMNS,
    **rights.COLUMNS,
    **scheduling.COLUMNS,
    **storage.COLUMNS,
    **workloads.COLUMNS,
}
"""By resource key; the columns after the name are here, all of them where `Name` is not first."""
