"""The end of the stream that a consumer with nothing pending has reached (rules B17, B19).

The server that leads a consumer counts what is pending in its own replica of the stream. If that
lags behind the stream's leader, a consumer that "has nothing pending" lacks the newest messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

_CATCHES_UP: Final = timedelta(seconds=1)
"""Time that a replica that has received everything may take to store it."""


class StreamEnd:
    """Up to where one consumer has handled its messages, by what the servers say.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Ends of the stream that were read: the newest, and one that is a second older.
        self._newest = ("", 0, float("-inf"))
        self._settled = ("", 0)

    def low_water(self, stream: Mapping[str, Any], consumer: Mapping[str, Any]) -> int:
        """The stream's end if the consumer has nothing pending, else its ack floor.

        The ack floor of a consumer that receives nothing for long does not move.

        Args:
            stream: its description, read before that of the consumer.
            consumer: its description.
        """
        end = self._end_at(stream, consumer)
        floor = int(consumer["ack_floor"]["stream_seq"])
        is_idle = consumer["num_pending"] == 0 and consumer["num_ack_pending"] == 0
        return floor if end is None or not is_idle else end

    def _end_at(self, stream: Mapping[str, Any], consumer: Mapping[str, Any]) -> int | None:
        """The stream's end on the server that leads the consumer; None if it is not known."""
        created, last = str(stream["created"]), int(stream["state"]["last_seq"])
        now = self._clock()
        if now - self._newest[2] >= _CATCHES_UP.total_seconds():
            self._settled = self._newest[:2]
            self._newest = (created, last, now)
        leader = _leader(consumer)
        if leader in ("", _leader(stream)):
            return last
        is_known = self._settled[0] == created and _has_all(stream, leader)
        floor = int(consumer["ack_floor"]["stream_seq"])
        return max(floor, self._settled[1]) if is_known else None


def _leader(info: Mapping[str, Any]) -> str:
    """The server that leads it; a consumer has none on a server that is in no cluster."""
    return str(info.get("cluster", {}).get("leader", ""))


def _has_all(stream: Mapping[str, Any], server: str) -> bool:
    """Whether a replica has received all that the stream's leader holds."""
    replicas = cast("list[dict[str, Any]]", stream["cluster"].get("replicas") or [])
    return any(
        replica["name"] == server and replica.get("current") and not replica.get("lag")
        for replica in replicas
    )
