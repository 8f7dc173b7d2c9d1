"""The contract of a reconcile function: its request, its result, and the outcome of a run.

The counterpart of controller-runtime's reconcile.go: a request names an object and holds none (rule
R1), the result is a value, any exception means "again, with back-off", and `TerminalError` means
"not again until something changes" (rule R8).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

_MOST_SECONDS: Final = timedelta.max.days * 86400


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """One item of a controller's queue: the name of an object in a cluster.

    A cluster-scoped object has an empty namespace.
    """

    controller: str
    cluster: str
    namespace: str
    name: str
    left: bool = field(default=False, compare=False)
    """Whether the object once matched a watch of this controller and matches none now: undo what
    was done for it. Set for the reconcile function only; requests are compared without it."""

    def __str__(self) -> str:
        return f"cluster://{self.cluster}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, init=False)
class Result:
    """The result of a successful reconcile: nothing more to do, or another run after a while.

    Args:
        requeue_after: a timedelta, where a negative one is no delay; or a number of seconds; None
            for no other run.

    Raises:
        TypeError: `requeue_after` is something else.
        ValueError: it is a number that is no delay: negative, infinite or NaN.
    """

    requeue_after: timedelta | None

    def __init__(self, requeue_after: timedelta | float | None = None) -> None:
        object.__setattr__(self, "requeue_after", _read_delay(requeue_after))


class TerminalError(Exception):
    """Raise it from a reconcile function to prevent a retry; the next change starts a new run."""


class Outcome(StrEnum):
    """Outcome of a run: in metrics, in traces, and as the last run of a request."""

    DONE = "done"
    REQUEUED = "requeued"
    """Done, and to be run again after a while."""
    RETRIED = "retried"
    """It failed, or something did not exist yet: retried with back-off."""
    GAVE_UP = "gave_up"
    """It raised `TerminalError`, or returned something other than a result."""
    CLUSTER_LEFT = "cluster_left"
    """The cluster of the request is no longer in the fleet."""
    LEASE_LOST = "lease_lost"
    """Another worker may have the request: the outcome of this run is discarded."""
    STOPPED = "stopped"
    """The process ended in the middle of it: the request goes back to the queue, uncounted."""

    @property
    def is_success(self) -> bool:
        """Whether the run succeeded."""
        return self in {Outcome.DONE, Outcome.REQUEUED}


def _read_delay(delay: object) -> timedelta | None:
    if delay is None or isinstance(delay, timedelta):
        return delay
    # True would be a second, where somebody most likely meant `Requeue: true`.
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(
            "requeue_after must be a timedelta or a number of seconds, like 30,"
            f" not {type(delay).__name__}"
        )
    if not 0 <= delay <= _MOST_SECONDS:  # also False for NaN
        raise ValueError(f"requeue_after must be a number of seconds from 0 on, not {delay}")
    return timedelta(seconds=delay)
