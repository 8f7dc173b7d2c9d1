"""Errors of the queue; a lost lease is `fleetbus.errors.LeaseLostError`.

WorkqueueError
├── QueueClosedError        the queue object was closed
└── QueueUnavailableError   the store did not answer, or refused; the effect is unknown (rule P9)
"""

from __future__ import annotations


class WorkqueueError(Exception):
    """Root of this package's errors."""


class QueueClosedError(WorkqueueError):
    """The queue was closed in this process; its items stay in the store."""


class QueueUnavailableError(WorkqueueError):
    """The store did not answer. The call may have taken effect; repeating it is safe."""
