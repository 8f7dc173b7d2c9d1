"""The calls of a process and the bodies that they collect, over all of its connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fleetbus_agent.body_budget import BodyBudget

_BODIES_LIMIT: Final = 64 * 1024**2


@dataclass(slots=True)
class Load:
    """The open calls of this process, and their limits.

    Attributes:
        max_calls: calls at the same time; those beyond are refused.
        calls: calls that are open now.
        bodies: bytes of request bodies that are being collected.
    """

    max_calls: int
    calls: int = 0
    bodies: BodyBudget = field(default_factory=lambda: BodyBudget(_BODIES_LIMIT))

    @property
    def is_full(self) -> bool:
        """Whether another call is refused."""
        return self.calls >= self.max_calls
