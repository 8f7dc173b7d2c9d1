"""Every error of the SDK.

FleetbusError
├── ConfigError            the configuration is wrong; the message names file and field
├── ClusterNotFound        the cluster left the fleet, or never was in it
├── NotEngaged             the cluster is in the fleet but cannot be used yet
├── NotSynced              no complete list of this resource has been seen yet (rule P14)
│   └── SnapshotBehind     the snapshot is older than what caused this run (rule P10)
├── IncompleteObject       what is to be written is not all that there is, or has marks in it
├── LeaseLostError         another worker may have the key: this run writes no more (rule R4)
├── NeverAwaited           the run called something and did not await it
├── RunStopped             the run of a plain function was told to stop (rule R7)
├── StoreError             Redis or Valkey is unusable: wrong policy, version, address
│   └── StoreFull          it has no room for more (rule P9)
├── BusError               NATS is unusable: too old, stream missing or drifted
├── MalformedOwner         the owner mark of an object cannot be read
└── KubeError              an API server refused, or did not answer
    ├── NotFound  Conflict  AlreadyExists  Invalid  Forbidden  Unauthorized  Gone
    ├── TooManyRequests  ServerError
    └── Unreachable        no answer at all: refused, timeout, TLS
        └── NotAccepted    another cluster than the accepted one answers (rule W13)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final, cast

_SHOWN: Final = 1000
_LONGEST_WISH_SECONDS: Final = 3600.0
"""Whoever wants to be left alone for longer is asked all the same."""


class FleetbusError(Exception):
    """The root of all errors of the SDK."""


class ConfigError(FleetbusError):
    """The configuration is wrong; the message names the file and the field."""


class ClusterNotFound(FleetbusError):
    """The cluster left the fleet, or never was in it."""


class NotEngaged(FleetbusError):
    """The cluster is in the fleet but cannot be used yet; trying again later is right."""


class NotSynced(FleetbusError):
    """No complete list of this resource has been seen yet, so absence means nothing (P14).

    Attributes:
        unwatched: the resource, if no cluster of the fleet has it in the snapshot: then waiting
            alone may not help, as most likely its name is misspelt. Else empty.
        do_you_mean: what is there instead and has the nearest name; or empty.
    """

    unwatched: str = ""
    do_you_mean: str = ""


class SnapshotBehind(NotSynced):
    """The snapshot shows an older version than the change that caused this run (rule P10).

    The request comes back by itself; nothing was wrong with the reconcile function.
    """


class IncompleteObject(FleetbusError):
    """An object is known in part, as the watcher has shown it, and writing it would lose the rest.

    Nothing was sent. `live` reads all of it; `patch` and `apply` write a part.
    """


class LeaseLostError(FleetbusError):
    """Another worker may own the request by now, so nothing was sent or recorded (rules Q4, R4)."""


class NeverAwaited(FleetbusError):
    """A run called a method of its fleet and did not await it; the message names the line."""


class RunStopped(FleetbusError):
    """The run of a plain function was told to stop: it is late, or the process ends (rule R7)."""


class StoreError(FleetbusError):
    """Redis or Valkey is unusable; the message says what was found and what is needed."""


class StoreFull(StoreError):
    """Redis or Valkey has no room; nothing was written, and what came by the bus waits (P9)."""


class BusError(FleetbusError):
    """NATS is unusable; the message says what was found and what is needed."""


class MalformedOwner(FleetbusError):
    """The owner mark of an object cannot be read; nothing may be deleted because of it."""


class KubeError(FleetbusError):
    """An API server refused a request, or did not answer.

    Attributes:
        status: HTTP status code; 0 when there was no answer.
        reason: the reason of the Kubernetes Status, like `Conflict`.
        details: the details of the Status: name, kind, causes.
        retry_after: how long the server wants to be left alone, if it says so with 429 or 5xx.
    """

    retry_after: timedelta = timedelta()

    def __init__(
        self, status: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.details = details or {}

    def __str__(self) -> str:
        """What logs and conditions show; a server may answer with any amount of text."""
        told = self.message[:_SHOWN] + ("…" if len(self.message) > _SHOWN else "")
        answer = f"{self.status} {self.reason[:_SHOWN]}".rstrip()
        return f"{told} ({answer})" if self.status else told


class NotFound(KubeError):
    """404: the object, or the type, does not exist."""


class Conflict(KubeError):
    """409: someone else changed the object, or owns the field."""


class AlreadyExists(Conflict):
    """409 AlreadyExists: an object of this name is there."""


class Invalid(KubeError):
    """422, or 400: the object is not acceptable; repeating does not help."""


class Forbidden(KubeError):
    """403: our credentials may not do this."""


class Unauthorized(KubeError):
    """401: our credentials are not accepted."""


class Gone(KubeError):
    """410: the resourceVersion or continue token is too old; list again."""


class TooManyRequests(KubeError):
    """429: wait `retry_after`, then repeat."""

    retry_after: timedelta = timedelta(seconds=1)


class ServerError(KubeError):
    """5xx: the server failed; repeat later."""


class Unreachable(KubeError):
    """No answer: connection refused, timed out, cut, or TLS failed.

    Attributes:
        cluster: whose API server it is; empty where that is not known.
    """

    cluster: str = ""

    def __str__(self) -> str:
        """The same, and which cluster it was: a run may have asked any."""
        told = super().__str__()
        is_named = not self.cluster or f"cluster {self.cluster!r}" in told
        return told if is_named else f"cluster {self.cluster!r}: {told}"


class NotAccepted(Unreachable):
    """Another cluster than the accepted one answers, or nobody knows which (rule W13).

    None of its answers counts, and nothing is written there, until somebody consents to it.
    """


_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def from_status(
    code: int, status: dict[str, Any], *, retry_after: float | None = None
) -> KubeError:
    """The error for a Kubernetes Status object that came with this HTTP code."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"the API server answered {code}")
    details: object = status.get("details")
    told = cast("dict[str, Any]", details) if isinstance(details, dict) else None
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(code)
    kind = kind or (ServerError if code >= 500 else KubeError)  # noqa: PLR2004 -- HTTP
    error = kind(code, reason, message, told)
    if isinstance(error, TooManyRequests | ServerError) and retry_after is not None:
        error.retry_after = timedelta(seconds=min(retry_after, _LONGEST_WISH_SECONDS))
    return error
