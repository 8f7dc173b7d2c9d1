"""Announces what a round found and did: as Kubernetes Events on the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.hub.kube_events import events_of
from fleetbus_distributor.targets.outcome import ClusterOutcome


class Announce(Protocol):
    """Announces the outcomes of a round."""

    async def __call__(
        self, document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
    ) -> None:
        """Announce what differs from before.

        Args:
            document: the MultiClusterResource.
            outcomes: of the clusters of the round.
            old: the status before it.
        """
        ...


class Announcer:
    """Announces to people and programs; a failure is only logged."""

    async def __call__(
        self, document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
    ) -> None:
        """Announce what differs from before."""
        await document.emit_events(events_of(outcomes, old))
