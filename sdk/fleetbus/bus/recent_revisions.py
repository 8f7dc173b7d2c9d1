"""Tells when a replica lags behind what this process has just seen of the bucket (rule B19).

Any replica of a bucket answers a direct read. Under load it lags by up to a tenth of a second, so
that one read in ten misses a write that was acknowledged before: a lease that we have just taken
would seem to be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

_KEPT: Final = timedelta(seconds=2)
"""Longer than a replica lags. A bucket that was lost and created again begins with low revisions,
and is believed after this."""
POLL: Final = timedelta(milliseconds=20)
"""Until a replica is asked again."""


@dataclass(frozen=True, slots=True)
class _Seen:
    revision: int
    at: float
    may_be_deleted: bool


class RecentRevisions:
    """The revisions that were read or written in the last two seconds.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # In the order of their times, so that old ones are dropped from the front.
        self._seen: dict[str, _Seen] = {}

    def note(self, key: str, revision: int, *, may_be_deleted: bool = False) -> None:
        """Record that a key has at least this revision, which may be that of its deletion.

        It is what the leader said, or was read and not outdated: if it is lower than before, the
        bucket was lost and began again.
        """
        now = self._clock()
        self._drop_old(now)
        self._seen.pop(key, None)
        self._seen[key] = _Seen(revision, now, may_be_deleted)

    def is_outdated(self, key: str, revision: int) -> bool:
        """Whether a newer revision was seen than a read found; 0 if it found none at all."""
        self._drop_old(self._clock())
        latest = self._seen.get(key)
        return latest is not None and revision < latest.revision

    def is_any_outdated(self, prefix: str, revisions: Mapping[str, int]) -> bool:
        """Whether that is so for a key below a prefix; `revisions` has those that exist."""
        self._drop_old(self._clock())
        return any(
            not latest.may_be_deleted if key not in revisions else revisions[key] < latest.revision
            for key, latest in self._seen.items()
            if key.startswith(f"{prefix}.")
        )

    def _drop_old(self, now: float) -> None:
        oldest = now - _KEPT.total_seconds()
        while self._seen:
            key = next(iter(self._seen))
            if self._seen[key].at > oldest:
                return
            del self._seen[key]
