"""The parts of store and bus that a round uses, for a plan: read if there is one, never written."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fleetbus.deletions.budget import Answer, Decision, Deletion, DeletionBudget, OwnerLimits
from fleetbus_distributor.hub.rollout_state import GateState
from fleetbus_distributor.rollout.advance import Finding
from fleetbus_distributor.rollout.votes import Votes
from fleetbus_distributor.rounds.missing_objects import MissingObjects
from fleetbus_distributor.rounds.status_pace import StatusPace

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.bus.connection import Bus


class PlannedBudget(DeletionBudget):
    """Asks the budget whether it would allow deletions, and spends nothing.

    Args:
        redis: the store; without one everything is allowed, and `is_unknown` says so.
    """

    def __init__(self, redis: Redis | None) -> None:
        if redis is not None:
            super().__init__(redis)
        self._has_store = redis is not None
        self.is_unknown = False
        """Whether deletions depend on a budget that could not be read."""

    async def spend(
        self, owner: OwnerLimits, deletions: Sequence[Deletion], *, allowed: int
    ) -> Answer:
        """Answer as the budget would.

        Raises:
            StoreError: the store did not answer.
        """
        if self._has_store:
            return await self.ask(owner, deletions, allowed=allowed)
        self.is_unknown = True
        return Answer(Decision.GRANTED, 0)


class PlannedVotes:
    """Reads the votes on gates.

    Args:
        bus: without one there are no votes, and `is_unknown` says so.
    """

    def __init__(self, bus: Bus | None) -> None:
        self._votes = Votes(bus) if bus is not None else None
        self.is_unknown = False
        """Whether a gate waits for a vote that could not be read."""

    async def __call__(self, subject: str) -> Finding:
        """The last vote on a subject."""
        if self._votes is not None:
            return await self._votes(subject)
        self.is_unknown = True
        return Finding(GateState.PENDING)


class NoNotes(MissingObjects):
    """No notes of repairs: every round of a plan compares all clusters."""

    def __init__(self) -> None:
        """Need no store."""

    async def note(self, owner: str, cluster: str) -> None:
        """Forget it."""

    async def read(self, owner: str) -> frozenset[str]:
        """Find nothing."""
        del owner
        return frozenset()

    async def forget(self, owner: str, notes: Iterable[str]) -> None:
        """Have nothing to forget."""


class AnyPace(StatusPace):
    """A plan writes no status, so nothing has to wait for one."""

    def __init__(self) -> None:
        """Need no store."""
        self._corrections = OrderedDict()

    async def wait(self, owner: str, *, lets_notes_first: bool = False) -> None:
        """Let everything be written."""

    async def note(self, owner: str) -> None:
        """Forget it."""
