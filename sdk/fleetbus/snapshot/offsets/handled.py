"""The messages that one process has handled, for its offset checkpoints (rule B17)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

MAX_RUNS: Final = 50_000
"""As many messages of ten shards may be without an acknowledgement. While the server of a shard is
away, what other processes handle makes holes, too, without a limit."""


class Handled:
    """Sequences in any order: those of one cluster may overtake those of another.

    They are kept as runs without a hole, so that a checkpoint that cannot be written for hours,
    because its server is away, costs no more than the messages that wait for it. What a checkpoint
    covers is forgotten.

    Args:
        max_runs: beyond it the latest are forgotten, which can make a gap of what is none.
    """

    def __init__(self, *, max_runs: int = MAX_RUNS) -> None:
        self._max_runs = max_runs
        # The first and the last sequence of each run, in their order.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._firsts)

    @property
    def newest(self) -> int:
        """The last sequence of all; 0 if there is none."""
        return self._lasts[-1] if self._lasts else 0

    def note(self, sequences: Iterable[int]) -> None:
        """Record messages that were handled."""
        for sequence in sequences:
            self._add(sequence)
        del self._firsts[self._max_runs :], self._lasts[self._max_runs :]

    def end_after(self, low: int) -> int:
        """The last sequence up to which all were handled, if all up to `low` were."""
        covered = bisect_right(self._firsts, low + 1)
        if covered:
            low = max(low, self._lasts[covered - 1])
        del self._firsts[:covered], self._lasts[:covered]
        return low

    def clear(self) -> None:
        """Forget all: the sequences are those of another stream, or the effects are lost."""
        self._firsts.clear()
        self._lasts.clear()

    def _add(self, sequence: int) -> None:
        at = bisect_right(self._firsts, sequence)
        if at and sequence <= self._lasts[at - 1]:
            return
        follows = at > 0 and self._lasts[at - 1] == sequence - 1
        precedes = at < len(self._firsts) and self._firsts[at] == sequence + 1
        if follows and precedes:
            self._lasts[at - 1] = self._lasts.pop(at)
            del self._firsts[at]
        elif follows:
            self._lasts[at - 1] = sequence
        elif precedes:
            self._firsts[at] = sequence
        else:
            self._firsts.insert(at, sequence)
            self._lasts.insert(at, sequence)
