"""Every error of the SDK.

FleetbusError
├── ConfigError            the configuration is wrong; the message names file and field
├── CaptureError           a capture cannot be written, read or opened
├── CredentialsError       a file with credentials is unusable; names setting and file
├── ClusterNotFound        the cluster left the fleet, or never was in it
├── NotEngaged             the cluster is in the fleet but not usable yet
├── NotSynced              no complete list of this resource has been seen yet (rule P14)
│   └── SnapshotBehind     the snapshot is older than what caused this run (rule P10)
├── IncompleteObject       the object to be written is incomplete, or has redaction marks
├── LeaseLostError         another worker may own the request: this run must not write (R4)
├── NeverAwaited           the run did not await one of its calls
├── RunStopped             the run of a plain function must stop (rule R7)
├── StoreError             Redis or Valkey is unusable: wrong policy, version, address
│   └── StoreFull          it is out of memory (rule P9)
├── BusError               NATS is unusable: too old, stream missing or drifted
├── ArchiveError           the archive of events is unusable, or a part of it is damaged
├── MalformedOwner         the owner mark of an object is malformed
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
_LONGEST_REASON: Final = 100
"""Characters; a server may send any amount of text."""
_MAX_RETRY_AFTER_SECONDS: Final = 3600.0
"""A longer `Retry-After` is cut to this."""


class FleetbusError(Exception):
    """The root of all errors of the SDK."""


class ConfigError(FleetbusError):
    """The configuration is wrong; the message names the file and the field."""


class CaptureError(FleetbusError):
    """A capture cannot be written, read or opened; the message names the file and says why."""


class CredentialsError(FleetbusError):
    """A file with credentials is unusable; the message names setting and file, not the content."""


class ClusterNotFound(FleetbusError):
    """The cluster left the fleet, or never was in it."""


class NotEngaged(FleetbusError):
    """The cluster is in the fleet but not usable yet; try again later."""


class NotSynced(FleetbusError):
    """No complete list of this resource has been seen yet, so absence means nothing (P14).

    Attributes:
        unwatched: the resource, if no cluster of the fleet has it in the snapshot: most likely its
            name is misspelt, so waiting does not help. Otherwise empty.
        did_you_mean: the closest name of an existing resource; or empty.
    """

    unwatched: str = ""
    did_you_mean: str = ""


class SnapshotBehind(NotSynced):
    """The snapshot shows an older version than the change that caused this run (rule P10).

    The request is retried automatically; this is not a failure of the reconcile function.
    """


class IncompleteObject(FleetbusError):
    """The object is incomplete, as the watcher published it; writing it would lose the rest.

    Nothing was sent. `live` reads the whole object; `patch` and `apply` write a part.
    """


class LeaseLostError(FleetbusError):
    """Another worker may own the request by now, so nothing was sent or recorded (rules Q4, R4)."""


class NeverAwaited(FleetbusError):
    """A run did not await a method of its fleet; the message names the line."""


class RunStopped(FleetbusError):
    """The run of a plain function must stop: it timed out, or the process ends (rule R7)."""


class StoreError(FleetbusError):
    """Redis or Valkey is unusable; the message says what was found and what is needed."""


class StoreFull(StoreError):
    """Redis or Valkey is out of memory; nothing was written, and messages of the bus wait (P9)."""


class BusError(FleetbusError):
    """NATS is unusable; the message says what was found and what is needed."""


class ArchiveError(FleetbusError):
    """The archive of events cannot be reached or refuses, or a part of it is damaged."""


class MalformedOwner(FleetbusError):
    """The owner mark of an object is malformed; nothing may be deleted because of it."""


class KubeError(FleetbusError):
    """An API server refused a request, or did not answer.

    Attributes:
        status: HTTP status code; 0 if there was no response.
        reason: the reason of the Kubernetes Status, like `Conflict`.
        details: the details of the Status: name, kind, causes.
        retry_after: the server's `Retry-After`, with 429 or 5xx.
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
        """The message for logs and conditions, truncated: a server may send any amount of text."""
        text = self.message[:_SHOWN] + ("…" if len(self.message) > _SHOWN else "")
        status = f"{self.status} {self.reason[:_SHOWN]}".rstrip()
        return f"{text} ({status})" if self.status else text


class NotFound(KubeError):
    """404: the object, or the type, does not exist."""


class Conflict(KubeError):
    """409: the object was changed concurrently, or another manager owns the field."""


class AlreadyExists(Conflict):
    """409 AlreadyExists: an object of this name exists."""


class Invalid(KubeError):
    """422 or 400: the object is invalid; retrying does not help."""


class Forbidden(KubeError):
    """403: the credentials do not allow this."""


class Unauthorized(KubeError):
    """401: the credentials are not accepted."""


class Gone(KubeError):
    """410: the resourceVersion or continue token is too old; list again."""


class TooManyRequests(KubeError):
    """429: wait for `retry_after`, then retry."""

    retry_after: timedelta = timedelta(seconds=1)


class ServerError(KubeError):
    """5xx: the server failed; retry later."""


class Unreachable(KubeError):
    """No response: the connection was refused, timed out or broke, or TLS failed.

    Attributes:
        cluster: the cluster of the API server; empty if it is not known.
    """

    cluster: str = ""

    def __str__(self) -> str:
        """The message with the name of the cluster: a run may use several."""
        text = super().__str__()
        is_named = not self.cluster or f"cluster {self.cluster!r}" in text
        return text if is_named else f"cluster {self.cluster!r}: {text}"


class NotAccepted(Unreachable):
    """A cluster other than the accepted one answers, or the accepted one is unknown (rule W13).

    Its responses do not count, and nothing is written there, until an operator consents.
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
    reason = str(status.get("reason") or "")[:_LONGEST_REASON]
    message = str(status.get("message") or f"the API server answered {code}")
    details: object = status.get("details")
    typed_details = cast("dict[str, Any]", details) if isinstance(details, dict) else None
    kind = AlreadyExists if reason == "AlreadyExists" else _BY_STATUS.get(code)
    kind = kind or (ServerError if code >= 500 else KubeError)  # noqa: PLR2004 -- HTTP
    error = kind(code, reason, message, typed_details)
    if isinstance(error, TooManyRequests | ServerError) and retry_after is not None:
        error.retry_after = timedelta(seconds=min(retry_after, _MAX_RETRY_AFTER_SECONDS))
    return error
