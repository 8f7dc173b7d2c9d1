"""Limits how many deletions that no edit requested the fleet allows in ten minutes (rule D8).

A label, a renamed cluster or a new version of ours may shrink many MultiClusterResources at once,
each below its own limits. So every process enters each such deletion into one set before it makes
it, and holds those that do not fit. The time is the store's. The set holds only the deletions of
the window; if the store loses it, the budget is full again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, cast

from fleetbus.store.connection import store_errors
from fleetbus_proto import keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

WINDOW: Final = timedelta(minutes=10)
LEAST: Final = 50
"""Deletions per window that even a small fleet allows."""
PERCENT: Final = 5
"""Percentage of all objects on record that is allowed, if that is more."""
_FAILURE: Final = "the budget of deletions cannot be read or written"


class Decision(IntEnum):
    """The decision about some deletions: the answers of spend.lua."""

    GRANTED = 0
    OWNER = 1
    """Held by the owner's own limits, counted over the window."""
    FLEET = 2
    """Held by the budget of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One object that would be deleted."""

    cluster: str
    object: str
    """Its UID, or its name while no UID is known."""
    is_recreated: bool = False
    """Whether it is created again, so that it stays on record."""

    def __str__(self) -> str:
        return f"{self.cluster}|{'~' if self.is_recreated else ''}{self.object}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """The limits of one owner per window, and how many objects it has."""

    uid: str
    clusters: int
    """Deletions on this many clusters or more are held."""
    objects: int
    percent: int
    on_record: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The decision of the budget, and how much of it was used before."""

    decision: Decision
    used: int


def allowance(on_record: int) -> int:
    """The deletions per window that are allowed with this many objects on record."""
    return max(LEAST, on_record * PERCENT // 100)


def objects_on_record(status: Mapping[str, Any]) -> int:
    """Count the objects on record in a MultiClusterResource's status; 0 if it is unreadable."""
    intent: Any = status.get("intent")
    try:
        if "chunks" in intent:
            return sum(int(chunk["objects"]) for chunk in intent["chunks"])
        every: list[object] = intent.get("objects", [])
        return sum(len(cluster.get("objects", every)) for cluster in intent.get("clusters", []))
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0


class DeletionBudget:
    """The budget in the store, shared by all processes.

    Args:
        redis: the store.
        window: for how long a deletion counts.
    """

    def __init__(self, redis: Redis, *, window: timedelta = WINDOW) -> None:
        self._redis = redis
        self._window = int(window.total_seconds() * 1000)
        self._key = keys.deletion_budget()
        text = resources.files("fleetbus.deletions").joinpath("spend.lua").read_text()
        self._spend = redis.register_script(text)

    async def spend(
        self, owner: OwnerLimits, deletions: Sequence[Deletion], *, allowed: int
    ) -> Answer:
        """Spend budget for deletions: for all of them or none; a repetition is free.

        Raises:
            StoreError: the store did not answer; delete nothing.
        """
        return await self._run(owner, deletions, allowed, is_spent=True)

    async def ask(
        self, owner: OwnerLimits, deletions: Sequence[Deletion], *, allowed: int
    ) -> Answer:
        """Answer as `spend` would, and spend nothing.

        Raises:
            StoreError: the store did not answer.
        """
        return await self._run(owner, deletions, allowed, is_spent=False)

    async def _run(
        self, owner: OwnerLimits, deletions: Sequence[Deletion], allowed: int, *, is_spent: bool
    ) -> Answer:
        arguments: list[str | int] = [
            self._window,
            allowed,
            f"{owner.uid}|",
            owner.clusters,
            owner.objects,
            owner.percent,
            owner.on_record,
            int(is_spent),
            *(f"{owner.uid}|{deletion}" for deletion in deletions),
        ]
        with store_errors(_FAILURE):
            answer = await cast("Any", self._spend)(keys=[self._key], args=arguments)
        decision, used = cast("list[int]", answer)
        return Answer(Decision(decision), used)

    async def used(self) -> int:
        """Count the deletions that were granted in the window.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            seconds, microseconds = await self._redis.time()
            since = seconds * 1000 + microseconds // 1000 - self._window
            return int(await self._redis.zcount(self._key, f"({since}", "+inf"))

    async def refill(self) -> None:
        """Refill the budget: a person has approved.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            await self._redis.delete(self._key)
