"""What the queue raises.

WorkqueueError
├── LeaseLostError          this fence no longer owns the key: stop working on it (rule Q4)
├── QueueClosedError        the queue object was closed
└── QueueUnavailableError   the store did not answer, or refused: nothing is known (rule P9)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbus.reconcile import Request


class WorkqueueError(Exception):
    """Root of this package's errors."""


class LeaseLostError(WorkqueueError):
    """Another owner has the key, or the key was recovered; what we would write is void."""

    def __init__(self, request: Request) -> None:
        super().__init__(f"the lease of {request} is lost")
        self.request = request


class QueueClosedError(WorkqueueError):
    """The queue was closed in this process; the items are where they were."""


class QueueUnavailableError(WorkqueueError):
    """The store could not be asked. The call may have taken effect; repeating it is safe."""
