"""The columns of Kubernetes' own resources: names, order and cells are those of API servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleetbus_query_api.tables.builtin import (
    admission,
    cluster,
    network,
    pods,
    rights,
    storage,
    workloads,
)
from fleetbus_query_api.tables.column import Column

BUILTIN: Final[Mapping[str, Sequence[Column]]] = {
    **admission.COLUMNS,
    **cluster.COLUMNS,
    **network.COLUMNS,
    **pods.COLUMNS,
    **rights.COLUMNS,
    **storage.COLUMNS,
    **workloads.COLUMNS,
}
"""By resource key; the columns after the name are here, all of them where `Name` is not first."""
