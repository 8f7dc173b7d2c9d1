"""The label by which a cluster has more turns in every queue than others (rule Q9)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fleetbus.clusters.info import ClusterInfo

LABEL: Final = "fleetbus.dev/queue-weight"
_HIGHEST: Final = 100
_NUMBER: Final = re.compile(r"[1-9]\d{0,2}")
log = structlog.get_logger()


class QueueWeights:
    """Reads the labels; says of a value that is no weight once that it is not used."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def read(self, clusters: Iterable[ClusterInfo]) -> dict[str, float]:
        """The weight of each cluster that has another one than 1."""
        found: dict[str, float] = {}
        for info in clusters:
            text = info.labels.get(LABEL)
            if text is None:
                continue
            if not _NUMBER.fullmatch(text) or int(text) > _HIGHEST:
                self._tell(info.name, text)
            elif text != "1":
                found[info.name] = int(text)
        return found

    def _tell(self, cluster: str, text: str) -> None:
        if (cluster, text) not in self._told:
            self._told.add((cluster, text))
            log.warning("queue_weight_unusable", cluster=cluster, value=text, expected="1 to 100")
