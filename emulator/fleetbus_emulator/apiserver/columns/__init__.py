"""The columns of `kubectl get` for the built-in types.

The names, their order and the computation of each cell are those of Kubernetes' own printers.
"""

from fleetbus_emulator.apiserver.columns import cluster, network, pods, rights, storage, workloads
from fleetbus_emulator.apiserver.columns.printed import Printed, Row

BUILTIN_COLUMNS: dict[tuple[str, str], Printed] = {
    **cluster.COLUMNS,
    **network.COLUMNS,
    **pods.COLUMNS,
    **rights.COLUMNS,
    **storage.COLUMNS,
    **workloads.COLUMNS,
}

__all__ = ["BUILTIN_COLUMNS", "Printed", "Row"]
