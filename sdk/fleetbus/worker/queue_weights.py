"""Reads which clusters get more turns in every queue than others (rule Q9)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import structlog

from fleetbus.clusters.info import ClusterInfo

log = structlog.get_logger()

WEIGHT_LABEL: Final = "fleetbus.dev/queue-weight"
"""The label of a cluster that gets more turns."""
_HIGHEST_WEIGHT: Final = 100
_NUMBER: Final = re.compile(r"[1-9]\d{0,2}")


class QueueWeights:
    """Reads `WEIGHT_LABEL`; logs each value that is no weight once."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def read(self, clusters: Iterable[ClusterInfo]) -> dict[str, float]:
        """The weights that differ from 1, by cluster."""
        found: dict[str, float] = {}
        for info in clusters:
            text = info.labels.get(WEIGHT_LABEL)
            if text is None:
                continue
            if not _NUMBER.fullmatch(text) or int(text) > _HIGHEST_WEIGHT:
                self._warn(info.name, text)
            elif text != "1":
                found[info.name] = int(text)
        return found

    def _warn(self, cluster: str, text: str) -> None:
        if (cluster, text) not in self._warned:
            self._warned.add((cluster, text))
            log.warning("queue_weight_unusable", cluster=cluster, value=text, expected="1 to 100")
