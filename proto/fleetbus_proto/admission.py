"""Which messages a reader accepts (rules B8, B18).

NATS grants rights by subject: the subject of a message is authorized, its body is not. So a reader
accepts only a message whose body names the same as its subject, with numbers that a clock can have
produced; everything else is rejected and counted for the cluster of the subject.
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
"""Incarnation numbers and epoch ids are the time in ms when they were claimed, or slightly more.
One from the far future would make all valid messages look old for ever (rule P2)."""


def admit(subject: str, headers: Mapping[str, str] | None, body: bytes, *, now_ms: int) -> Message:
    """Decode a message; reject one that its publisher had no right to send.

    Args:
        subject: the subject on which it was published.
        headers: the published headers.
        body: the published body.
        now_ms: the reader's clock.

    Raises:
        MalformedMessage: it is unreadable, of another format, not about what its subject names, or
            has a number too far ahead; the message says which.
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
        InvalidName: it names something that a subject cannot represent.
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
    """The cluster of a message's subject; empty if there is none.

    Also valid for an unreadable message: its publisher had the rights of this cluster.
    """
    tokens = subject.split(".", 3)
    try:
        return check_cluster(tokens[2]) if len(tokens) > 3 else ""  # noqa: PLR2004 -- see subjects
    except InvalidName:
        return ""


def is_too_far_ahead(number: int, now_ms: int) -> bool:
    """Whether an incarnation number or epoch id is further ahead than any clock error allows."""
    return number > now_ms + FURTHEST_AHEAD_MS


def _check_subject(message: Message, subject: str) -> None:
    try:
        expected = subject_of(message)
    except InvalidName as e:
        raise MalformedMessage(str(e)) from e
    if expected != subject:
        raise MalformedMessage("the body does not match the subject")


def _check_numbers(message: Message, now_ms: int) -> None:
    incarnation = message.incarnation.number
    epoch = message.epoch.id if isinstance(message, Event | EpochEnd | AuditPage) else 0
    if is_too_far_ahead(incarnation, now_ms):
        raise TooFarAhead("incarnation number", max(incarnation, epoch))
    if is_too_far_ahead(epoch, now_ms):
        raise TooFarAhead("epoch id", epoch)


def _check_removal(marker: EpochEnd) -> None:
    """Check that the type is defined by a CRD and has no objects left (rule W17)."""
    if is_built_in(marker.group):
        raise MalformedMessage(f"types of the built-in group {marker.group!r} cannot be removed")
    if marker.count:
        raise MalformedMessage("a type that was removed has no objects")
