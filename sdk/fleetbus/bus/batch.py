"""Atomic batches: many messages that nats-server stores together, or none of them.

A batch is only a faster way to send messages for the first time, to a server that syncs to disk
before it acknowledges: since nats-server 2.15 it does so once per batch, not once per message. If
the outcome of a batch is in doubt (a known Msg-Id in it, no answer in time, a new connection), the
window sends its messages again one by one, with the same Msg-Ids (rules B4, B6).

If the server does not sync at once, or syncs each message of a batch as 2.12 and 2.14 do, a batch
only costs more. A client cannot read that setting, so both ways are measured (`Pace`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from fleetbus.bus.acks import Settle
from fleetbus.bus.patches.header_encoding import prepend

MESSAGES: Final = 500
"""In one batch; a server allows 1,000, and 50 open batches for one stream."""
_REMEMBERED: Final = 2_000
_FORGOTTEN_AFTER: Final = 60.0
PAUSE: Final = 1.0
"""Seconds without batches after the server refused one because too many were open."""

TOO_MANY: Final = 10210
UNKNOWN: Final = -1
"""Our own code for a server that stores the commit like any other message."""
_UNUSABLE: Final = frozenset(
    {
        UNKNOWN,
        10174,  # not enabled for the stream
        10175,  # missing sequence
        10177,  # 2.12.0: no Msg-Id in a batch
        10179,  # invalid batch id
        10199,  # too many messages
        10200,  # invalid commit
    }
)


class Outgoing(NamedTuple):
    """One message of a batch; `settle` is called once with its outcome."""

    subject: str
    body: bytes
    headers: dict[str, str]
    settle: Settle


class Batch(NamedTuple):
    """A batch that is in flight."""

    id: str
    tokens: tuple[str, ...]
    """The tokens of its messages, in order."""
    sent: float


def is_unusable(err_code: int) -> bool:
    """Whether this error code means that further batches will be refused too."""
    return err_code in _UNUSABLE


def batch_headers(batch: Batch, position: int, block: dict[str, str]) -> dict[str, str]:
    """The headers of the message at a position, counted from 1; the last one is the commit."""
    more = {"Nats-Batch-Id": batch.id, "Nats-Batch-Sequence": str(position)}
    if position == len(batch.tokens):
        more["Nats-Batch-Commit"] = "1"
    return prepend(more, block)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceLimits:
    """The measurements that batches need."""

    dear: float = 100e-6
    """Seconds per message below which batches gain nothing."""
    worth_it: float = 0.8
    """Batches are used while a message in one costs less than this part of a single one."""
    enough: int = 200
    """Messages after which a measurement counts."""
    busy: int = 100
    """With fewer messages in flight the time between two answers says little about the server."""


LIMITS: Final = PaceLimits()


class _Meter:
    """The average time per message, over the latest ones."""

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._seconds = 0.0
        self._count = 0
        self._at = float("-inf")

    def note(self, seconds: float, count: int, now: float) -> None:
        if now - self._at > _FORGOTTEN_AFTER:
            self._seconds, self._count = 0.0, 0
        elif self._count > _REMEMBERED:
            self._seconds, self._count = self._seconds / 2, self._count // 2
        self._seconds += seconds
        self._count += count
        self._at = now

    def cost(self, now: float) -> float | None:
        """Seconds per message; None without enough recent measurements."""
        if self._count < self._enough or now - self._at > _FORGOTTEN_AFTER:
            return None
        return self._seconds / self._count


class Pace:
    """Measures which way of sending is faster here, by the time between answers.

    Args:
        limits: when batches are used.
    """

    def __init__(self, limits: PaceLimits = LIMITS) -> None:
        self._limits = limits
        self._singly = _Meter(limits.enough)
        self._together = _Meter(limits.enough)
        self._answered = float("-inf")

    def note(self, now: float, sent: float, in_flight: int, count: int) -> None:
        """Note that a message, or a batch of `count` messages, was answered.

        Args:
            now: when it was answered.
            sent: when it was sent; if nothing else was answered since, the server was idle, and the
                time measures the network and not the server.
            in_flight: how many messages still wait for an answer.
            count: 1 for a single message.
        """
        gap, is_busy = now - self._answered, sent < self._answered
        self._answered = now
        if count > 1:
            if is_busy:
                self._together.note(gap, count, now)
        elif is_busy and in_flight >= self._limits.busy:
            self._singly.note(gap, 1, now)

    def prefers_batches(self, now: float) -> bool:
        """Whether the next messages should be sent as a batch; also true to measure one."""
        singly, together = self._singly.cost(now), self._together.cost(now)
        if singly is None or singly < self._limits.dear:
            return False
        return together is None or together < singly * self._limits.worth_it


class BatchCount(msgspec.Struct, frozen=True):
    """The additional fields in the answer to a commit; a server without batches has none."""

    count: int = 0


_counts = msgspec.json.Decoder(BatchCount)


def is_whole(batch: Batch, answer: bytes) -> bool:
    """Whether an answer without an error confirms that all messages of a batch are stored."""
    return _counts.decode(answer).count == len(batch.tokens)
