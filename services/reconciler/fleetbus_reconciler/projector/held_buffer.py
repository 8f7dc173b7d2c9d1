"""Holds back what the controllers of this process are writing anyway (rule P9).

Each message on its own costs the projector a turn; together they cost little more than one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Final

from fleetbus.bus.buffer import BATCH, Buffered, FairBuffer
from fleetbus_proto.events import Event

HELD: Final = timedelta(milliseconds=100)
"""Longer would save little: the projector's part of ten changes costs as much as that of one."""


class HeldBuffer(FairBuffer):
    """The projector's buffer; events that another reader of this process writes wait for others.

    What comes behind them, and is something else, lets all of them go.

    Args:
        is_written: whether another reader of this process is about to write an event.
        held: for how long an event waits.
    """

    def __init__(self, is_written: Callable[[Event], bool], *, held: timedelta = HELD) -> None:
        super().__init__(is_skippable=skip_nothing, concurrency=1)
        self._is_written = is_written
        self._hold_for = held.total_seconds()
        # When what waits is to be handled, and how many messages wait.
        self._due = inf
        self._count = 0
        self._is_holding = False

    @property
    def wait(self) -> float:
        """See `Buffer`; after a `take` that returned nothing."""
        return max(0.0, self._due - time.monotonic()) if self._is_holding else super().wait

    def add(self, buffered: Buffered) -> Buffered | None:
        """See `Buffer`; all that wait are due if this is not one to be held."""
        dropped = super().add(buffered)
        if dropped is not None:
            return dropped
        self._count += 1
        message = buffered.delivery.message
        if isinstance(message, Event) and self._is_written(message):
            self._due = min(self._due, time.monotonic() + self._hold_for)
        else:
            self._due = 0.0
        return None

    def take(self) -> Sequence[Buffered]:
        """See `Buffer`; nothing before it is due, unless a batch is full."""
        self._is_holding = time.monotonic() < self._due and self._count < BATCH
        if self._is_holding:
            return ()
        batch = super().take()
        self._count -= len(batch)
        if not self._count:
            self._due = inf
        elif batch:
            self._due = 0.0  # the rest follows
        return batch


def skip_nothing(_older: Event, _newer: Event) -> bool:
    """The snapshot's feed has every change."""
    return False
