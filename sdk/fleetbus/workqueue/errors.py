"""What the queue raises.

WorkqueueError
├── QueueClosedError        the queue object was closed
└── QueueUnavailableError   the store did not answer, or refused: nothing is known (rule P9)
"""

from __future__ import annotations


class WorkqueueError(Exception):
    """Root of this package's errors."""


class QueueClosedError(WorkqueueError):
    """The queue was closed in this process; the items are where they were."""


class QueueUnavailableError(WorkqueueError):
    """The store could not be asked. The call may have taken effect; repeating it is safe."""
