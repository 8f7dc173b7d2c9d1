"""Faults of one open watch."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from fleetbus_emulator.apiserver.faults.actions import (
    CutWatch,
    Drip,
    DropEvents,
    EndWatch,
    Expire,
    Garble,
    HideBookmarks,
    LagWatch,
    StallWatch,
    WatchAction,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleetbus_emulator.apiserver.faults.rules import Rule
    from fleetbus_emulator.apiserver.storage.store import Event

BOOKMARK = b'{"type":"BOOKMARK"'
INITIAL_END = b'"k8s.io/initial-events-end"'
MARK_SECONDS = 0.01  # a busy watch needs no timer for each event
GARBAGE_LINE = b'{"type":"MODIFIED","object":<html>502 Bad Gateway</html>\n'


class Break(Enum):
    """Ways in which the transport breaks a connection."""

    END = "end"
    RESET = "reset"
    GARBAGE = "garbage"


@dataclass(slots=True)
class Outcome:
    """The lines that a watch may send, and how it goes on.

    Attributes:
        lines: Go out now.
        held: Wait.
        ended: Nothing comes behind `lines`.
        broken: How the connection breaks behind `lines`.
    """

    lines: list[bytes]
    held: list[bytes]
    ended: bool = False
    broken: Break | None = None


class WatchFault:
    """A rule applied to one open watch; it counts the lines sent since then.

    Args:
        rule: The rule.
        sent: How many lines the watch had sent by then.
    """

    def __init__(self, rule: Rule, sent: int = 0) -> None:
        self._rule = rule
        after = _lines_before(rule.action)
        self._limit = None if after is None else sent + after
        self._lag = Lag(rule.action) if isinstance(rule.action, LagWatch) else None

    @property
    def active(self) -> bool:
        """Whether the rule still holds; a rule that is spent does, one that is removed does not."""
        return not self._rule.removed

    @property
    def lag(self) -> Lag | None:
        """The lag of the watch's events."""
        return self._lag if self.active else None

    @property
    def drip(self) -> Drip | None:
        """The pace at which the transport sends."""
        action = self._rule.action
        return action if isinstance(action, Drip) and self.active else None

    def is_stalling(self, sent: int) -> bool:
        """Whether nothing may be sent at all."""
        return isinstance(self._rule.action, StallWatch) and self.allowance(sent) == 0

    def hides(self, line: bytes) -> bool:
        """Whether a line is a bookmark that is not sent."""
        action = self._rule.action
        if not isinstance(action, HideBookmarks) or not self.active:
            return False
        return line.startswith(BOOKMARK) and (action.initial_end or INITIAL_END not in line)

    def drops(self, event: Event, line: bytes) -> bool:
        """Whether the line of an event is never sent."""
        if not isinstance(self._rule.action, DropEvents):
            return False
        namespace, name = event.stored.key
        return self._rule.drops((event.stored.rv, type_of(line)), namespace, name)

    def drops_initial(self, rv: int, namespace: str, name: str) -> bool:
        """Whether an object is left out of the state that a watch begins with."""
        return self._rule.drops((rv, "ADDED"), namespace, name)

    def allowance(self, sent: int) -> int | None:
        """The number of lines that may be sent before the fault takes effect; None for no limit."""
        if self._limit is None or not self.active:
            return None
        return max(0, self._limit - sent)

    def apply(self, outcome: Outcome, expired: Callable[[], bytes]) -> None:
        """Do it, now that the lines before it are sent."""
        action = self._rule.action
        if isinstance(action, Expire):
            outcome.held.clear()
            outcome.lines.append(expired())
            outcome.ended = True
        elif isinstance(action, Garble):
            self._send_garbage(action, outcome)
        elif isinstance(action, CutWatch | EndWatch):
            outcome.ended = True
            if action.mid_line and outcome.lines:
                outcome.lines[-1] = outcome.lines[-1][: len(outcome.lines[-1]) // 2]
            if isinstance(action, CutWatch):
                outcome.broken = Break.RESET if action.reset else Break.END

    def _send_garbage(self, action: Garble, outcome: Outcome) -> None:
        if action.where == "chunk":
            outcome.ended, outcome.broken = True, Break.GARBAGE
        else:
            outcome.lines.append(GARBAGE_LINE)
            self._limit = None  # the watch goes on


def _lines_before(action: object) -> int | None:
    """The number of lines sent before an action takes effect; None if it does not count lines."""
    if isinstance(action, CutWatch | EndWatch | StallWatch | Garble):
        return action.after_events
    if isinstance(action, Expire) and action.where == "stream":
        return action.after_events
    return None


def affects_open_watches(action: object) -> bool:
    """Whether an action means anything to a watch that is open already."""
    if isinstance(action, Expire):
        return action.where == "stream"
    return isinstance(action, WatchAction)


def apply_faults(
    faults: Sequence[WatchFault], lines: list[bytes], sent: int, expired: Callable[[], bytes]
) -> Outcome:
    """Hold back what exceeds a fault's allowance, then let the fault strike.

    Args:
        faults: Of one watch.
        lines: What it is about to send.
        sent: How many lines it has sent.
        expired: Makes the line that says too old.
    """
    lines = [line for line in lines if not any(fault.hides(line) for fault in faults)]
    allowances = (fault.allowance(sent) for fault in faults)
    allowed = min(
        (allowance for allowance in allowances if allowance is not None), default=len(lines)
    )
    outcome = Outcome(lines[:allowed], lines[allowed:])
    reached = sent + len(outcome.lines)
    for fault in faults:
        if fault.allowance(reached) == 0:
            fault.apply(outcome, expired)
    return outcome


def type_of(line: bytes) -> str:
    """The type of an encoded event."""
    start = len(b'{"type":"')
    return line[start : line.index(b'"', start)].decode()


class Lag:
    """The delay of a lagging watch: it may read as far as the log reached a while ago.

    Args:
        action: How long a while is.
    """

    def __init__(self, action: LagWatch) -> None:
        self._seconds = action.duration.total_seconds()
        self._marks: deque[tuple[float, int]] = deque()  # when, up to which position
        self._visible: int | None = None

    def visible(self, position: int, end: int, wake: Callable[[], None]) -> int:
        """The position up to which events may be read now.

        Args:
            position: Where the watch is.
            end: Where the log ends.
            wake: Called when more becomes visible.
        """
        loop = asyncio.get_running_loop()
        if self._visible is None:
            self._visible = position
        newest = self._marks[-1][1] if self._marks else self._visible
        if end > newest:
            self._mark(loop, end, wake)
        while self._marks and self._marks[0][0] <= loop.time():
            self._visible = self._marks.popleft()[1]
        return self._visible

    def _mark(self, loop: asyncio.AbstractEventLoop, end: int, wake: Callable[[], None]) -> None:
        due = loop.time() + self._seconds
        if self._marks and due - self._marks[-1][0] < MARK_SECONDS:
            self._marks[-1] = (self._marks[-1][0], end)
            return
        self._marks.append((due, end))
        loop.call_at(due, wake)
