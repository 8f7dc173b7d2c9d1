"""Announces what a round found and did: as Kubernetes Events on the hub, and as events on the bus.

Both notify of changes; the status is what holds (rule D27).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from fleetbus_distributor.announce import bus_events
from fleetbus_distributor.announce.kube_events import events_of, rollout_events
from fleetbus_distributor.hub.document import Document, KubeEvent
from fleetbus_distributor.off_loop import off_loop
from fleetbus_distributor.rollout.changes import RolloutChange
from fleetbus_distributor.targets.outcome import ClusterOutcome
from fleetbus_proto.distribution import DistributionEvent

Offer: TypeAlias = Callable[[Sequence[DistributionEvent], str], None]
"""Take events to publish, and the resourceVersion from which they were found."""


class Announce(Protocol):
    """Announces the outcomes of a round."""

    async def __call__(
        self, document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
    ) -> None:
        """Announce what differs from before.

        Args:
            document: the MultiClusterResource, with the status after the round.
            outcomes: of the clusters of the round.
            old: the status before it.
        """
        ...

    async def rollout(self, document: Document, changes: Sequence[RolloutChange]) -> None:
        """Announce what has happened in a rollout.

        Args:
            document: the MultiClusterResource, with the status after the changes.
            changes: of its rollout, in order.
        """
        ...


class Announcer:
    """Announces to people and programs; a failure is only logged.

    Args:
        offer: takes events for the bus.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    async def __call__(
        self, document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
    ) -> None:
        """Announce what differs from before."""
        written = {outcome.name: outcome.changes for outcome in outcomes}
        bus, kube = await off_loop(written, _build, document, outcomes, old)
        self._offer(bus, document.read_version)
        await document.emit_events(kube)

    async def rollout(self, document: Document, changes: Sequence[RolloutChange]) -> None:
        """Announce what has happened in a rollout."""
        self._offer(bus_events.rollout_events(document, changes), document.read_version)
        await document.emit_events(rollout_events(changes))


def _build(
    document: Document, outcomes: Sequence[ClusterOutcome], old: Mapping[str, Any]
) -> tuple[list[DistributionEvent], list[KubeEvent]]:
    return bus_events.events_of(document, outcomes, old), events_of(outcomes, old)
