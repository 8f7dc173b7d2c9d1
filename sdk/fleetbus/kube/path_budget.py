"""Bounds the work of evaluating JSONPaths (rule A8).

A path of a few hundred characters may visit every value of an object a hundred times: the number of
results says nothing about the work, so each visited value counts as a step.
"""

from __future__ import annotations

from typing import Final

from fleetbus.errors import FleetbusError

DEFAULT_STEPS: Final = 50_000_000
"""Steps of an expression that users evaluate in a process of their own; some tens of seconds."""
CHARACTERS_PER_STEP: Final = 64
"""Characters of a string that is compared or rendered."""


class InvalidJsonPath(FleetbusError):
    """An expression is malformed, or cannot be applied to an object."""


class PathTooCostly(InvalidJsonPath):
    """The evaluation of an expression takes more steps than its budget has."""


class PathBudget:
    """The steps that an evaluation may still take.

    Args:
        steps: how many there are.

    Attributes:
        steps: how many are left; negative once there were too few.
    """

    __slots__ = ("limit", "steps")

    def __init__(self, steps: int = DEFAULT_STEPS) -> None:
        self.limit = self.steps = steps

    @property
    def spent(self) -> int:
        """Number of steps taken; the whole budget if it was exceeded."""
        return self.limit - max(self.steps, 0)

    def spend(self, steps: int) -> None:
        """Count steps, before the work is done.

        Raises:
            PathTooCostly: there are fewer left.
        """
        self.steps -= steps
        if self.steps < 0:
            raise PathTooCostly(
                f"the path takes more than {self.limit} steps on this object: it visits too many"
                " values, or some of them too often"
            )

    def spend_text(self, text: str) -> None:
        """Count the characters of a string."""
        self.spend(1 + len(text) // CHARACTERS_PER_STEP)
