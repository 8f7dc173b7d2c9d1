"""Bounds the bytes of request bodies that are being collected, over all calls."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from fleetbus_agent.failures import CallFailed
from fleetbus_proto.calls import Reason


class BodyBudget:
    """The bytes of all bodies that are being collected.

    Args:
        limit: the most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0

    @contextmanager
    def taking(self) -> Generator[Callable[[int], None]]:
        """Take bytes for the duration of the block.

        Yields:
            A function to call with how many bytes the body has by now; raises CallFailed if all
            bodies together are too many.
        """
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if self._taken + size - mine > self._limit:
                raise CallFailed(Reason.OVERLOADED, "the agent has too many large requests")
            self._taken += size - mine
            mine = size

        try:
            yield take
        finally:
            self._taken -= mine
