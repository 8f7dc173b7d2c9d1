"""Which messages a reader accepts (rules B8, B18).

NATS grants rights by subject: what a watcher may publish on is authenticated, what its message says
is not. So a reader believes only a message whose body names what its subject names, and numbers
that some clock can have claimed; everything else is refused for the cluster of the subject.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleetbus_proto.codec import decode
from fleetbus_proto.errors import InvalidName, MalformedMessage, TooFarAhead
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.headers import check_format
from fleetbus_proto.resources import is_built_in
from fleetbus_proto.subjects import check_cluster, epochs_subject, event_subject, status_subject

FURTHEST_AHEAD_MS: Final = 24 * 60 * 60 * 1000
"""Incarnation numbers and epoch ids are times in ms when they were claimed, or a little more. One
from the far future would make everything true look old for ever (rule P2)."""


def admit(subject: str, headers: Mapping[str, str] | None, body: bytes, *, now_ms: int) -> Message:
    """Read a message, and refuse one that its publisher had no right to.

    Args:
        subject: on which it was published.
        headers: as they were published.
        body: as it was published.
        now_ms: the reader's clock.

    Raises:
        MalformedMessage: unreadable, of another format, about something else than its subject
            says, or with a number that is too far ahead; the text says which.
        TooFarAhead: the last of these.
    """
    check_format(headers)
    message = decode(body)
    _check_subject(message, subject)
    _check_numbers(message, now_ms)
    if isinstance(message, EpochEnd) and message.removed:
        _check_removal(message)
    return message


def subject_of(message: Message) -> str:
    """The one subject on which a message may be published.

    Raises:
        InvalidName: it names something that no subject can carry.
    """
    if isinstance(message, Event):
        return event_subject(
            message.cluster,
            message.group,
            message.resource,
            message.namespace,
            message.name,
            message.verb,
        )
    if isinstance(message, Heartbeat):
        return status_subject(message.cluster, message.replica)
    return epochs_subject(message.cluster, message.group, message.resource)


def cluster_of(subject: str) -> str:
    """The cluster that a message of the stream was published for; empty if there is none.

    Also of a message that cannot be read: whoever published it had rights for this cluster.
    """
    tokens = subject.split(".", 3)
    try:
        return check_cluster(tokens[2]) if len(tokens) > 3 else ""  # noqa: PLR2004 -- see subjects
    except InvalidName:
        return ""


def is_too_far_ahead(number: int, now_ms: int) -> bool:
    """Whether no clock that is nearly right can have claimed an incarnation number or epoch id."""
    return number > now_ms + FURTHEST_AHEAD_MS


def _check_subject(message: Message, subject: str) -> None:
    try:
        own = subject_of(message)
    except InvalidName as e:
        raise MalformedMessage(str(e)) from e
    if own != subject:
        raise MalformedMessage("the body names something else than its subject")


def _check_numbers(message: Message, now_ms: int) -> None:
    incarnation = message.incarnation.number
    epoch = message.epoch.id if isinstance(message, Event | EpochEnd | AuditPage) else 0
    if is_too_far_ahead(incarnation, now_ms):
        raise TooFarAhead("incarnation number", max(incarnation, epoch))
    if is_too_far_ahead(epoch, now_ms):
        raise TooFarAhead("epoch id", epoch)


def _check_removal(marker: EpochEnd) -> None:
    """Only types that a CRD defines end, and then there are no objects of them (rule W17)."""
    if is_built_in(marker.group):
        raise MalformedMessage(f"no type of the group {marker.group!r} can be removed")
    if marker.count:
        raise MalformedMessage("a type that was removed has no objects")
