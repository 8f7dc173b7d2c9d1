"""The actions of fault rules, as data.

Where each acts:

    before the request is handled   Delay Hang Abort (connections.py), Compact (cluster.py)
    instead of an answer            Fail GroupDown (handler.py), Expire("open") (operations.py)
    on what a list holds            StaleList Expire("page") (lists.py), PartialList (operations.py)
    on the way to the client        CutAnswer Drip Garble, Delay Hang Abort with after_commit
                                    (connections.py)
    on an open watch                Expire("stream") CutWatch EndWatch StallWatch HideBookmarks
                                    LagWatch DropEvents Garble Drip (streams.py, for watch.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from fleetbus_emulator.apiserver.errors import ApiError

FIRST_ERROR, LAST_ERROR = 400, 599


class FieldError(ValueError):
    """A rule that makes no sense.

    Attributes:
        field: The field, as Python spells it.
        why: What is wrong with it.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: {why}")
        self.field = field
        self.why = why


def _require(field: str, why: str, *, holds: bool) -> None:
    if not holds:
        raise FieldError(field, why)


def _require_positive(field: str, duration: timedelta) -> None:
    _require(field, "must be longer than nothing", holds=duration > timedelta(0))


def _require_count(field: str, count: int) -> None:
    _require(field, "must not be negative", holds=count >= 0)


# any request ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fail:
    """Answer with an error Status and do nothing.

    Attributes:
        status: The HTTP status, 400 to 599.
        reason: The Status' reason; by default the one that belongs to the status.
        retry_after: Sent as the Retry-After header, in whole seconds.
    """

    status: int
    reason: str | None = None
    message: str = "injected fault"
    retry_after: timedelta | None = None

    def __post_init__(self) -> None:
        is_error = FIRST_ERROR <= self.status <= LAST_ERROR
        _require("status", f"must be from {FIRST_ERROR} to {LAST_ERROR}", holds=is_error)
        if self.retry_after is not None:
            _require("retry_after", "must not be negative", holds=self.retry_after >= timedelta(0))

    def to_error(self) -> ApiError:
        """The refusal."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(0, round(self.retry_after.total_seconds())))
        reason = self.reason or _REASONS.get(self.status, "InternalError")
        return ApiError(self.status, reason, self.message, headers=headers)


_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class GroupDown:
    """The API server behind an API group is down; the rule names the group.

    Its discovery and its resources are 503, and aggregated discovery calls it stale. The list of
    groups still has it, as on a real server whose APIService is not available.
    """


@dataclass(frozen=True, slots=True)
class Delay:
    """Answer correctly, but late.

    Attributes:
        duration: How late.
        after_commit: Act at once and answer late, instead of acting late.
    """

    duration: timedelta
    after_commit: bool = False

    def __post_init__(self) -> None:
        _require_positive("duration", self.duration)


@dataclass(frozen=True, slots=True)
class Hang:
    """Accept the request and never answer.

    Attributes:
        after_commit: Do what was asked for, instead of nothing.
    """

    after_commit: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Break the connection without an answer.

    Attributes:
        after_commit: Do what was asked for first, instead of nothing.
        reset: With a TCP reset, instead of an orderly end.
    """

    after_commit: bool = False
    reset: bool = False


@dataclass(frozen=True, slots=True)
class CutAnswer:
    """Break the connection in the midst of an answer; for watches see `CutWatch`.

    Attributes:
        share: How much of the body is sent, from 0 (headers only) to below 1.
        reset: With a TCP reset, instead of an orderly end.
    """

    share: float = 0.0
    reset: bool = False

    def __post_init__(self) -> None:
        _require("share", "must be at least 0 and less than 1", holds=0.0 <= self.share < 1.0)


@dataclass(frozen=True, slots=True)
class Drip:
    """Send the body, or the lines of a watch, in small pieces with pauses.

    Attributes:
        size: Bytes in a piece.
        pause: The time between two pieces.
    """

    size: int = 16
    pause: timedelta = timedelta(milliseconds=50)

    def __post_init__(self) -> None:
        _require("size", "must be at least 1", holds=self.size >= 1)
        _require_positive("pause", self.pause)


@dataclass(frozen=True, slots=True)
class Garble:
    """Send garbage.

    Attributes:
        where: `chunk` breaks the framing of HTTP, and then the connection; `body` is sound HTTP,
            but what stands there is no JSON. A watch goes on behind such a line.
        after_events: Watches only: once so many lines were sent.
    """

    where: Literal["chunk", "body"] = "chunk"
    after_events: int = 0

    def __post_init__(self) -> None:
        _require_count("after_events", self.after_events)


@dataclass(frozen=True, slots=True)
class Compact:
    """Forget the whole event log before the request is handled.

    Upon `list` it makes the next page too old, upon `watch` the revision of the list before it,
    provided that something was written meanwhile.
    """


# lists ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expire:
    """Too old: HTTP 410 when a watch opens, ERROR 410 in its stream, or 410 on page 2 and later.

    Attributes:
        where: open, stream or page.
        after_events: stream only: after so many lines.
    """

    where: Literal["open", "stream", "page"]
    after_events: int = 0

    def __post_init__(self) -> None:
        _require_count("after_events", self.after_events)


@dataclass(frozen=True, slots=True)
class StaleList:
    """Answer lists as a watch cache that is behind does.

    Lists at resourceVersion=0 and at versions up to its own show its past; a later version is too
    large (504). Lists without a version are read from the store and stay right. Where the event
    log does not reach back that far, lists are right too.

    Attributes:
        resource_version: The past revision; None is that of the moment when the rule is added.
    """

    resource_version: int | None = None

    def __post_init__(self) -> None:
        if self.resource_version is not None:
            _require_count("resource_version", self.resource_version)


@dataclass(frozen=True, slots=True)
class PartialList:
    """Leave out the end of a list and call the list complete, as no sound server does.

    Attributes:
        share: How much of each list or page is left, from 0 (an empty list) to below 1.
    """

    share: float = 0.0

    def __post_init__(self) -> None:
        _require("share", "must be at least 0 and less than 1", holds=0.0 <= self.share < 1.0)


# watches ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CutWatch:
    """Break a watch's connection once it has sent so many lines.

    Attributes:
        mid_line: In the midst of the last line.
        reset: With a TCP reset, instead of an orderly end.
    """

    after_events: int = 1
    mid_line: bool = True
    reset: bool = False

    def __post_init__(self) -> None:
        _require_count("after_events", self.after_events)


@dataclass(frozen=True, slots=True)
class EndWatch:
    """End a watch once it has sent so many lines, as servers do when its time is over.

    Attributes:
        mid_line: In the midst of the last line, as a proxy may; the HTTP is sound all the same.
    """

    after_events: int = 0
    mid_line: bool = False

    def __post_init__(self) -> None:
        _require_count("after_events", self.after_events)


@dataclass(frozen=True, slots=True)
class StallWatch:
    """Keep a watch open and send nothing more, not even its end, once it sent so many lines."""

    after_events: int = 0

    def __post_init__(self) -> None:
        _require_count("after_events", self.after_events)


@dataclass(frozen=True, slots=True)
class HideBookmarks:
    """Send no bookmarks.

    Attributes:
        initial_end: Not even the one that ends the initial events of a watch-list.
    """

    initial_end: bool = False


@dataclass(frozen=True, slots=True)
class LagWatch:
    """Let events and bookmarks reach watches late, as from a watch cache that is behind."""

    duration: timedelta

    def __post_init__(self) -> None:
        _require_positive("duration", self.duration)


@dataclass(frozen=True, slots=True)
class DropEvents:
    """Never send an event, neither on the watches that are open nor on later ones.

    The rule's namespace and name are those of the object, and its count, skip and probability are
    about events instead of requests.

    Attributes:
        type: Only events of this type, as the watch would have sent them.
    """

    type: Literal["ADDED", "MODIFIED", "DELETED"] | None = None


WatchAction = (
    CutWatch
    | EndWatch
    | StallWatch
    | HideBookmarks
    | LagWatch
    | DropEvents
    | Expire
    | Garble
    | Drip
)
"""The actions that can apply to a watch that is already open."""

Action = (
    Fail
    | GroupDown
    | Delay
    | Hang
    | Abort
    | CutAnswer
    | Compact
    | StaleList
    | PartialList
    | WatchAction
)
