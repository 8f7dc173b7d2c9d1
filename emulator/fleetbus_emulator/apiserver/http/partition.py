"""The network between the clients and one API server, and its partitions."""

from __future__ import annotations

import asyncio
from enum import StrEnum


class Partition(StrEnum):
    """Kinds of network partition.

    - `refuse`: connections break and new ones are refused.
    - `hang`: connections stay and new ones are accepted, but nothing passes either way.
    - `lose-requests`: requests do not arrive; watches that are open go on.
    - `lose-answers`: requests arrive and are done; no answer and no event comes back.

    Requests that hung continue when the partition heals, as far as the client still waits.
    """

    REFUSE = "refuse"
    HANG = "hang"
    LOSE_REQUESTS = "lose-requests"
    LOSE_ANSWERS = "lose-answers"


class Link:
    """The way from the clients to one API server and back."""

    def __init__(self) -> None:
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._partition: Partition | None = None
        self.heal()

    @property
    def partition(self) -> Partition | None:
        """The present partition; None if there is none."""
        return self._partition

    def cut(self, partition: Partition) -> None:
        """Let nothing pass any more, one way or both."""
        self.heal()
        self._partition = partition
        if partition in (Partition.HANG, Partition.LOSE_REQUESTS):
            self._requests.clear()
        if partition in (Partition.HANG, Partition.LOSE_ANSWERS):
            self._answers.clear()

    def heal(self) -> None:
        """Let everything pass."""
        self._partition = None
        self._requests.set()
        self._answers.set()

    async def carry_request(self) -> None:
        """Return when a request gets through."""
        await self._requests.wait()

    async def carry_answer(self) -> None:
        """Return when an answer, or a part of one, gets through."""
        await self._answers.wait()
