"""Import rules beside the contracts of import-linter: no circle of modules, anywhere."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

import grimp
import pytest

from support.rows import each_row

PACKAGES = (
    "fleetbus_proto",
    "fleetbus",
    "fleetbus_cli",
    "fleetbus_watcher",
    "fleetbus_reconciler",
    "fleetbus_distributor",
    "fleetbus_query_api",
    "fleetbus_archiver",
    "fleetbus_agent",
    "fleetbus_devfleet",
    "fleetbus_emulator",
)


@each_row("package", PACKAGES)
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Imports for types count: what two modules share is a third one below both."""
    graph: Any = grimp.build_graph(package, exclude_type_checking_imports=False)
    modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert modules
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as e:
        pytest.fail(" → ".join(e.args[1]))
