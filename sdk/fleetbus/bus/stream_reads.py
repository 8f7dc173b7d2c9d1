"""Reads messages of a stream by direct gets, which take no consumer and change nothing.

A direct get is one request for up to a thousand messages: those that follow a sequence or a time on
a subject, or the last one of each of many subjects, also as they were at a point in time. It needs
one right, to publish to `$JS.API.DIRECT.GET.<stream>`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import nats.errors
import orjson
from nats.aio.msg import Msg

from fleetbus.bus.connection import REQUEST_TIMEOUT, Bus, NoAnswer, NoStream, subscribed
from fleetbus.errors import BusError
from fleetbus.process.clock import rfc3339

_FIRST_PAGE: Final = 1_000
_FIRST_PAGE_BYTES: Final = 4 * 1024**2
"""Size of a page; a larger message comes alone."""
_PAGE: Final = 10_000
_PAGE_BYTES: Final = 16 * 1024**2
"""Size of the pages that follow. A server counts for each page how many messages are left, which
takes it longer than to send a thousand of them."""
_MULTI_BYTES: Final = 16 * 1024**2
"""Size of one answer with the last messages of many subjects; a server cuts it at 64 MiB anyway."""
_MOST_BYTES: Final = 32 * 1024**2
"""Size of the last messages of a subject; fewer are returned if they are larger."""
_HALVINGS: Final = 24
_ENOUGH: Final = 8
"""Times as many messages as are wanted may be read."""
_LONGEST: Final = timedelta(seconds=30)
"""A server that has to load many blocks of the stream takes seconds."""
_AT_A_TIME: Final = 3
"""Requests for the last messages of many subjects: the server works while we decode."""
_FIRST_SUBJECTS: Final = 250
"""An object has four subjects, one for each verb, and a server returns 1,024 messages at most."""
_MOST_SUBJECTS: Final = 1_000
_WANTED_MESSAGES: Final = 900
"""Number of messages in one answer: a server looks through its whole stream for each request,
however few it names."""
_MOST_SUBJECT_BYTES: Final = 256 * 1024
"""Size of the subjects of one request: a server takes a message of 1 MiB at least."""
_END: Final = "204"
_NOT_FOUND: Final = "404"
_TOO_MANY: Final = "413"
_NO_RESPONDERS: Final = "503"


class StoredMessage(NamedTuple):
    """A message as the stream holds it."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    sequence: int
    stored_at: datetime


async def read_messages(
    bus: Bus, stream: str, subject: str, *, start: datetime | int, most: int | None = None
) -> AsyncGenerator[list[StoredMessage]]:
    """Yield the messages of a subject in pages, oldest first, up to the end of the stream.

    Not more are read than there were at first, so a fast publisher cannot make it endless.

    Args:
        bus: a connection.
        stream: its name.
        subject: may have wildcards.
        start: the time or the sequence of the first one.
        most: of all pages together; None for all.

    Raises:
        NoStream: there is no such stream.
        NoAnswer: no answer in time.
        BusError: the server refused.
    """
    request: dict[str, Any] = (
        {"seq": max(start, 1)} if isinstance(start, int) else {"start_time": rfc3339(start)}
    )
    left, size, size_bytes = most, _FIRST_PAGE, _FIRST_PAGE_BYTES
    while left is None or left > 0:
        batch = size if left is None else min(left, size)
        page, pending = await _read_page(bus, stream, subject, request, batch, size_bytes)
        if page:
            yield page
        if not pending:
            return
        if left is None:
            left = len(page) + pending
        request = {"seq": page[-1].sequence + 1}
        left -= len(page)
        size, size_bytes = _PAGE, _PAGE_BYTES


async def read_last(
    bus: Bus, stream: str, subject: str, *, start: datetime, end: int, most: int
) -> tuple[list[StoredMessage], bool]:
    """Read the last messages of a subject, oldest first, and whether there are more before them.

    Of a busy subject only the end is read: the server says with every message how many follow, and
    so a place is found by halving after which not many more than `most` do.

    Args:
        bus: a connection.
        stream: its name.
        subject: may have wildcards.
        start: the time of the first one, at the earliest.
        end: the last sequence of the stream, or an earlier one.
        most: how many, at the most.

    Raises: as `read_messages`.
    """
    page, pending = await _read_page(bus, stream, subject, {"start_time": rfc3339(start)}, most)
    if not pending:
        return page, False
    low, high = page[-1].sequence + 1, end
    for _ in range(_HALVINGS):
        if low >= high or pending <= _ENOUGH * most:
            break
        middle = (low + high + 1) // 2
        _, following = await _read_page(bus, stream, subject, {"seq": middle}, 1)
        if following < most:
            high = middle - 1
        else:
            low, pending = middle, following
    last = deque(page if low == page[-1].sequence + 1 else ())
    size = sum(len(message.body) for message in last)
    async for messages in read_messages(bus, stream, subject, start=low):
        last.extend(messages)
        size += sum(len(message.body) for message in messages)
        while len(last) > most or (size > _MOST_BYTES and len(last) > 1):
            size -= len(last.popleft().body)
    return list(last), True


async def _read_page(
    bus: Bus,
    stream: str,
    subject: str,
    request: Mapping[str, Any],
    most: int,
    most_bytes: int = _FIRST_PAGE_BYTES,
) -> tuple[list[StoredMessage], int]:
    """The first messages of a request, and how many follow; none follow an empty page."""
    page: list[StoredMessage] = []
    end = await direct_get(
        bus,
        stream,
        {**request, "next_by_subj": subject, "batch": most, "max_bytes": most_bytes},
        subject,
        lambda message, headers: page.append(_stored(message, headers)),
        within=_LONGEST,
    )
    pending = pending_after(stream, end)
    return page, pending if page else 0


async def last_messages(
    bus: Bus,
    stream: str,
    subjects: Sequence[str],
    *,
    until: datetime | None = None,
    part: int = _MULTI_BYTES,
) -> list[StoredMessage]:
    """Read the last message of every subject, or the last one before a point in time.

    Args:
        bus: a connection.
        stream: its name.
        subjects: any number; they may have wildcards, but match 1,024 subjects each at most.
        until: only messages that were stored up to then.
        part: size of one answer, in bytes.

    Raises:
        NoStream: there is no such stream.
        NoAnswer: no answer in time.
        BusError: the server refused, for instance because one of them matches too many.
    """
    collected: list[StoredMessage] = []
    parts = _Parts(subjects)

    async def read() -> None:
        while batch := parts.take():
            messages = await _last_of(bus, stream, batch, until, part)
            parts.adapt(len(batch), len(messages))
            collected.extend(messages)

    await asyncio.gather(*(read() for _ in range(_AT_A_TIME)))
    return collected


async def _last_of(
    bus: Bus, stream: str, subjects: Sequence[str], until: datetime | None, part: int
) -> list[StoredMessage]:
    request: dict[str, Any] = {
        "multi_last": list(subjects),
        "batch": _PAGE,
        "max_bytes": part,
    }
    if until is not None:
        # A server looks for the first message at or after this time, and takes what is before it.
        request["up_to_time"] = rfc3339(until)
    messages: list[StoredMessage] = []
    while True:
        before = len(messages)
        end = await direct_get(
            bus,
            stream,
            request,
            f"the last messages of {len(subjects)} subjects",
            lambda message, headers: messages.append(_stored(message, headers)),
            within=_LONGEST,
        )
        if end.get("Status") == _TOO_MANY and len(subjects) > 1:
            half = len(subjects) // 2
            first = await _last_of(bus, stream, subjects[:half], until, part)
            return first + await _last_of(bus, stream, subjects[half:], until, part)
        if not pending_after(stream, end):
            return messages
        if len(messages) == before:
            raise BusError(f"a batched get of {stream} returned nothing of what is left")
        # The rest, up to where the first answer looked: the last messages of then.
        request.pop("up_to_time", None)
        request["seq"] = messages[-1].sequence + 1
        request["up_to_seq"] = int(end["Nats-UpTo-Sequence"])


class _Parts:
    """Divides subjects into those of one request each, by how many messages the last ones had."""

    def __init__(self, subjects: Sequence[str]) -> None:
        self._subjects = subjects
        self._start = 0
        self._most = _FIRST_SUBJECTS

    def take(self) -> Sequence[str]:
        """The next subjects; none at the end."""
        size, end = 0, self._start
        for subject in self._subjects[self._start : self._start + self._most]:
            size += len(subject)
            if size > _MOST_SUBJECT_BYTES and end > self._start:
                break
            end += 1
        batch = self._subjects[self._start : end]
        self._start = end
        return batch

    def adapt(self, subjects: int, messages: int) -> None:
        """Choose the size of the next part."""
        fitting = subjects * _WANTED_MESSAGES // max(1, messages)
        self._most = min(_MOST_SUBJECTS, max(_FIRST_SUBJECTS, fitting))


def _stored(message: Msg, headers: Mapping[str, str]) -> StoredMessage:
    return StoredMessage(
        headers["Nats-Subject"],
        headers,
        message.data,
        int(headers["Nats-Sequence"]),
        datetime.fromisoformat(headers["Nats-Time-Stamp"]),
    )


async def direct_get(
    bus: Bus,
    stream: str,
    request: Mapping[str, Any],
    subject: str,
    take: Callable[[Msg, Mapping[str, str]], None],
    *,
    within: timedelta = REQUEST_TIMEOUT,
) -> Mapping[str, str]:
    """Call `take` for each message of a batched direct get; return the headers of its end.

    Raises:
        NoAnswer: it did not come to its end in time.
        Refused: we have no right to these reads.
    """
    ended: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def on_message(message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Sequence" in headers:
            take(message, headers)
        elif not ended.done():
            ended.set_result(headers)

    inbox, path = bus.nc.new_inbox(), f"$JS.API.DIRECT.GET.{stream}"
    try:
        async with (
            asyncio.timeout(within.total_seconds()),
            bus.refusals.until_refused(path),
            subscribed(bus, inbox, on_message),
        ):
            await bus.publish(path, orjson.dumps(request), reply=inbox)
            return await ended
    except (TimeoutError, nats.errors.Error) as e:
        raise NoAnswer(f"no answer for {subject}: {e or type(e).__name__}") from e


def pending_after(stream: str, end: Mapping[str, str]) -> int:
    """Count the messages that match beyond those that a batched direct get has returned.

    Raises:
        NoStream: there is no such stream.
        BusError: the server refused.
    """
    status = end.get("Status", "")
    if status == _NOT_FOUND:
        return 0
    if status == _NO_RESPONDERS:
        raise NoStream(f"no responders for {stream}")
    if status != _END:
        raise BusError(f"a batched get of {stream} failed: {dict(end)}")
    return int(end.get("Nats-Num-Pending", "0"))
