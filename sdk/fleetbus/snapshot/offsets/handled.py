"""The messages that one process has handled, for its offset checkpoints (rule B17)."""

from __future__ import annotations

from collections.abc import Iterable


class Handled:
    """Sequences in any order: those of one cluster may overtake those of another.

    What a checkpoint covers is forgotten. The rest is small: no more than a durable may have
    without an acknowledgement.
    """

    def __init__(self) -> None:
        self._sequences: set[int] = set()

    def note(self, sequences: Iterable[int]) -> None:
        """Record messages that were handled."""
        self._sequences.update(sequences)

    def end_after(self, low: int) -> int:
        """The last sequence up to which all were handled, if all up to `low` were."""
        self._sequences = {sequence for sequence in self._sequences if sequence > low}
        while low + 1 in self._sequences:
            low += 1
        return low

    def clear(self) -> None:
        """Forget all: the sequences are those of another stream, or the effects are lost."""
        self._sequences.clear()
