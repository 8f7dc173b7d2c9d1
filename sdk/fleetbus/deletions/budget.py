"""How many deletions that follow from no edit the fleet allows in ten minutes (rule D8).

A label, a renamed cluster or a new version of ours may let many MultiClusterResources shrink at
once, each below its own limits. So each such deletion is entered here before it is made, by every
process in the same set, and what does not fit is held. The time is the store's. The set holds no
more than the window's deletions; if the store loses it, the budget is whole again.
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
"""Of all objects on record, where that is more."""
_FAILURE: Final = "the budget of deletions cannot be read or written"


class Decision(IntEnum):
    """The answers of spend.lua."""

    GRANTED = 0
    OWNER = 1
    """The owner's own limits, counted over the window."""
    FLEET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """One object that would be deleted."""

    cluster: str
    object: str
    """Its UID, or its name while no UID is known."""
    is_recreated: bool = False
    """It stays on record."""

    def __str__(self) -> str:
        return f"{self.cluster}|{'~' if self.is_recreated else ''}{self.object}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """What one owner may lose in a window, and what it has."""

    uid: str
    clusters: int
    """From this many clusters on it is held."""
    objects: int
    percent: int
    on_record: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What the budget says, and how much of it was used before."""

    decision: Decision
    used: int


def allowance(on_record: int) -> int:
    """The deletions per window that a fleet with so many objects on record allows."""
    return max(LEAST, on_record * PERCENT // 100)


def objects_on_record(status: Mapping[str, Any]) -> int:
    """How many objects the status of a MultiClusterResource has on record; 0 if unreadable."""
    intent: Any = status.get("intent")
    try:
        every: list[object] = intent.get("objects", [])
        return sum(len(one.get("objects", every)) for one in intent.get("clusters", []))
    except (AttributeError, TypeError):
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
        """Take deletions out of the budget: all of them or none; a repetition costs nothing.

        Raises:
            StoreError: the store did not answer; nothing may be deleted.
        """
        arguments: list[str | int] = [
            self._window,
            allowed,
            f"{owner.uid}|",
            owner.clusters,
            owner.objects,
            owner.percent,
            owner.on_record,
            *(f"{owner.uid}|{one}" for one in deletions),
        ]
        with store_errors(_FAILURE):
            answer = await cast("Any", self._spend)(keys=[self._key], args=arguments)
        decision, used = cast("list[int]", answer)
        return Answer(Decision(decision), used)

    async def used(self) -> int:
        """How many deletions of the window are taken.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            seconds, microseconds = await self._redis.time()
            since = seconds * 1000 + microseconds // 1000 - self._window
            return int(await self._redis.zcount(self._key, f"({since}", "+inf"))

    async def refill(self) -> None:
        """Forget what was spent: a person has looked.

        Raises:
            StoreError: the store did not answer.
        """
        with store_errors(_FAILURE):
            await self._redis.delete(self._key)
