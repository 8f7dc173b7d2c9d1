"""Batched direct gets: one request for a thousand messages of a stream, or a MiB.

Reads all keys below a prefix of the bucket, or the last message of each of many subjects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import nats.errors
import orjson
from nats.aio.msg import Msg

from fleetbus.bus.connection import REQUEST_TIMEOUT, Bus, NoAnswer, NoStream, subscribed
from fleetbus.bus.key_value import Entry, below
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET

_BATCH: Final = 1_000
_BATCH_BYTES: Final = 1024**2
"""Of a page: a watcher may fill the bucket with values of the largest size."""
_STREAM: Final = f"KV_{KV_BUCKET}"
_PREFIX: Final = f"$KV.{KV_BUCKET}."
_END: Final = "204"
_NOT_FOUND: Final = "404"
_NO_RESPONDERS: Final = "503"


async def scan_keys(bus: Bus, prefix: str) -> dict[str, Entry]:
    """Read all keys below a prefix, without deleted ones; a token of the prefix may be `*`.

    A key that is written meanwhile is returned with its old or its new value.

    Raises:
        NoStream: there is no bucket.
        NoAnswer: no answer in time.
        BusError: the server refused.
    """
    found: dict[str, Entry] = {}
    async for page in scan_pages(bus, prefix):
        found.update(page)
    return found


async def scan_pages(bus: Bus, prefix: str) -> AsyncGenerator[dict[str, Entry]]:
    """The same page by page, for keys of others, which may be too many to hold at once.

    Raises:
        NoStream, NoAnswer, BusError: as for `scan_keys`.
    """
    start = 1
    while True:
        page = await _read_page(bus, _PREFIX + below(prefix), start)
        yield page.entries
        if not page.is_more:
            return
        start = page.last + 1


@dataclass(slots=True)
class _Page:
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    last: int = 0
    is_more: bool = False

    def take(self, message: Msg, headers: Mapping[str, str]) -> None:
        """Add one key; the bucket keeps one message of each."""
        self.last = int(headers["Nats-Sequence"])
        if "KV-Operation" not in headers:
            key = headers["Nats-Subject"].removeprefix(_PREFIX)
            self.entries[key] = Entry(message.data, self.last)


async def _read_page(bus: Bus, subject: str, start: int) -> _Page:
    page = _Page()
    size = {"batch": _BATCH, "max_bytes": _BATCH_BYTES}
    request = {"seq": start, "next_by_subj": subject, **size}
    end = await _batch(bus, _STREAM, request, subject, page.take)
    page.is_more = _is_more(_STREAM, end)
    return page


class LastMessage(NamedTuple):
    """The newest message of a subject."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    stored_at: datetime


async def last_messages(bus: Bus, stream: str, subjects: str) -> list[LastMessage]:
    """Read the last message of every matching subject; the server returns 1,024 at most.

    Raises:
        NoStream: there is no such stream.
        NoAnswer: no answer in time.
        BusError: the server refused, for instance because there are too many.
    """
    found: list[LastMessage] = []

    def take(message: Msg, headers: Mapping[str, str]) -> None:
        stored_at = datetime.fromisoformat(headers["Nats-Time-Stamp"])
        found.append(LastMessage(headers["Nats-Subject"], headers, message.data, stored_at))

    end = await _batch(bus, stream, {"multi_last": [subjects]}, subjects, take)
    _is_more(stream, end)
    return found


async def _batch(
    bus: Bus,
    stream: str,
    request: Mapping[str, Any],
    what: str,
    take: Callable[[Msg, Mapping[str, str]], None],
) -> Mapping[str, str]:
    """Call `take` for each message of a batched direct get; return the headers of its end."""
    ended: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def on_message(message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Sequence" in headers:
            take(message, headers)
        elif not ended.done():
            ended.set_result(headers)

    inbox = bus.nc.new_inbox()
    try:
        async with (
            asyncio.timeout(REQUEST_TIMEOUT.total_seconds()),
            subscribed(bus, inbox, on_message),
        ):
            await bus.publish(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(request), reply=inbox)
            return await ended
    except (TimeoutError, nats.errors.Error) as e:
        raise NoAnswer(f"no answer for {what}: {e or type(e).__name__}") from e


def _is_more(stream: str, end: Mapping[str, str]) -> bool:
    status = end.get("Status", "")
    if status == _NOT_FOUND:
        return False
    if status == _NO_RESPONDERS:
        raise NoStream(f"no responders for {stream}")
    if status != _END:
        raise BusError(f"a batched get of {stream} failed: {dict(end)}")
    return int(end.get("Nats-Num-Pending", "0")) > 0
