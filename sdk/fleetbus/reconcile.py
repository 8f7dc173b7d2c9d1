"""What a reconcile function is given, and what it may answer.

Our counterpart of controller-runtime's reconcile.go: a request names an object and holds none
(rule R1), the result is a value, any exception means "again, with back-off", and `TerminalError`
means "not again until something changes" (rule R8).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta


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
    """The object matched a watch of this controller once, and matches none now: undo what was
    done for it. Told to the reconcile function; not a part of what makes requests equal."""

    def __str__(self) -> str:
        return f"cluster://{self.cluster}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    """What a successful reconcile asks for: nothing, or another run after a while."""

    requeue_after: timedelta | None = None


class TerminalError(Exception):
    """Raised by a reconcile function: do not retry; the next change starts a new run."""
