"""The metrics of all components, from the modules that define them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

from prometheus_client.metrics import MetricWrapperBase

import fleetbus
import fleetbus_agent
import fleetbus_archiver
import fleetbus_distributor
import fleetbus_query_api
import fleetbus_reconciler
import fleetbus_watcher
from reference.tables import code, table

_PACKAGES: Final[dict[str, ModuleType]] = {
    "Every component that does this work": fleetbus,
    "Watcher": fleetbus_watcher,
    "Reconciler": fleetbus_reconciler,
    "Distributor": fleetbus_distributor,
    "Query API": fleetbus_query_api,
    "Archiver": fleetbus_archiver,
    "Agent": fleetbus_agent,
}


def page() -> str:
    """Write the page."""
    parts = [
        "# Metrics\n",
        (
            "Every component serves its metrics at `/metrics` of its health server, in the text"
            " format of Prometheus."
        ),
        "A `cluster` label has names of clusters of the fleet only, or is empty.\n",
    ]
    for component, package in _PACKAGES.items():
        rows = [_row(name, metric) for name, metric in sorted(metrics_of(package).items())]
        parts += [f"## {component}\n", table(("metric", "type", "labels", "what it is"), rows)]
    return "\n".join(parts)


def metrics_of(package: ModuleType) -> dict[str, MetricWrapperBase]:
    """The metrics that the modules of a package define, by the name that Prometheus shows."""
    found: dict[str, MetricWrapperBase] = {}
    for module in _modules(package):
        for value in vars(module).values():
            if isinstance(value, MetricWrapperBase):
                found[_shown_name(value)] = value
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """The modules that define metrics; importing all would take seconds."""
    folder = Path(package.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        if "from prometheus_client import" in path.read_text(encoding="utf-8"):
            parts = path.relative_to(folder).with_suffix("").parts
            yield importlib.import_module(".".join((package.__name__, *parts)))


def _shown_name(metric: MetricWrapperBase) -> str:
    [family] = metric.describe()
    return f"{family.name}_total" if family.type == "counter" else family.name


def _row(name: str, metric: MetricWrapperBase) -> tuple[str, str, str, str]:
    [family] = metric.describe()
    labels: tuple[str, ...] = cast("Any", metric)._labelnames
    return code(name), family.type, ", ".join(map(code, labels)), family.documentation
