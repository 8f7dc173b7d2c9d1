"""Many messages of a stream by batched direct gets: one request per thousand, or per MiB.

All keys below a prefix of the bucket; the last message of each of many subjects.
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
"""Of a page: a watcher may fill the bucket with values as long as the bucket takes."""
_STREAM: Final = f"KV_{KV_BUCKET}"
_PREFIX: Final = f"$KV.{KV_BUCKET}."
_END: Final = "204"
_NOT_FOUND: Final = "404"
_NO_RESPONDERS: Final = "503"


async def scan_keys(bus: Bus, prefix: str) -> dict[str, Entry]:
    """What the keys below a prefix hold, deleted ones left out; a token of it may be `*`.

    A key that is written meanwhile comes with its old value or its new one.

    Raises:
        NoStream: there is no bucket.
        NoAnswer: not in time.
        BusError: the server refused.
    """
    found: dict[str, Entry] = {}
    async for page in scan_pages(bus, prefix):
        found.update(page)
    return found


async def scan_pages(bus: Bus, prefix: str) -> AsyncGenerator[dict[str, Entry]]:
    """The same, page by page: for keys that others may write, too many for one answer perhaps.

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
        """Note one key; the bucket keeps one message of each."""
        self.last = int(headers["Nats-Sequence"])
        if "KV-Operation" not in headers:
            key = headers["Nats-Subject"].removeprefix(_PREFIX)
            self.entries[key] = Entry(message.data, self.last)


async def _read_page(bus: Bus, subject: str, start: int) -> _Page:
    page = _Page()
    size = {"batch": _BATCH, "max_bytes": _BATCH_BYTES}
    request = {"seq": start, "next_by_subj": subject, **size}
    told = await _batch(bus, _STREAM, request, subject, page.take)
    page.is_more = _is_more(_STREAM, told)
    return page


class LastMessage(NamedTuple):
    """The newest message of a subject."""

    subject: str
    headers: Mapping[str, str]
    body: bytes
    stored_at: datetime


async def last_messages(bus: Bus, stream: str, subjects: str) -> list[LastMessage]:
    """The last message of every subject that matches; the server answers for 1,024 at most.

    Raises:
        NoStream: there is no such stream.
        NoAnswer: not in time.
        BusError: the server refused, also because there are too many.
    """
    found: list[LastMessage] = []

    def take(message: Msg, headers: Mapping[str, str]) -> None:
        stored_at = datetime.fromisoformat(headers["Nats-Time-Stamp"])
        found.append(LastMessage(headers["Nats-Subject"], headers, message.data, stored_at))

    told = await _batch(bus, stream, {"multi_last": [subjects]}, subjects, take)
    _is_more(stream, told)
    return found


async def _batch(
    bus: Bus,
    stream: str,
    request: Mapping[str, Any],
    what: str,
    take: Callable[[Msg, Mapping[str, str]], None],
) -> Mapping[str, str]:
    """Hand each message of a batched direct get to `take`; answers the headers of its end."""
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


def _is_more(stream: str, told: Mapping[str, str]) -> bool:
    status = told.get("Status", "")
    if status == _NOT_FOUND:
        return False
    if status == _NO_RESPONDERS:
        raise NoStream(f"nobody answers for {stream}")
    if status != _END:
        raise BusError(f"a batch of {stream}: {dict(told)}")
    return int(told.get("Nats-Num-Pending", "0")) > 0
