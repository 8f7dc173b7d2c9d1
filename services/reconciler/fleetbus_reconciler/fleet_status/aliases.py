"""Two names for one cluster are told of both (T8): what each does there the other undoes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog
from prometheus_client import Gauge

from fleetbus.snapshot.accepted import aliases_of
from fleetbus.snapshot.records import ClusterRecord

log = structlog.get_logger()

ALIASES: Final = Gauge(
    "fleetbus_cluster_aliases",
    "Other names of the fleet behind which is the same cluster; 0 unless somebody made a mistake.",
    ["cluster"],
)


class Aliases:
    """Finds the clusters of the fleet that have more than one name."""

    def __init__(self) -> None:
        # What was told: cluster → its other names.
        self._told: dict[str, tuple[str, ...]] = {}

    def look(self, records: Iterable[ClusterRecord]) -> Mapping[str, tuple[str, ...]]:
        """The other names of each cluster, by name; what is new is logged and counted."""
        found = aliases_of(records)
        for name in self._told.keys() - found.keys():
            with suppress(KeyError):
                ALIASES.remove(name)
        for name, others in found.items():
            ALIASES.labels(name).set(len(others))
            if others and others != self._told.get(name):
                log.warning("cluster_has_two_names", cluster=name, others=others)
        self._told = found
        return found
