"""Read all keys below a prefix of the bucket, by batched direct gets: one request per thousand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import nats.errors
import orjson
from nats.aio.msg import Msg

from fleetbus.bus import REQUEST_TIMEOUT, Bus, Entry, NoAnswer, NoStream, below, subscribed
from fleetbus.cancellation import cancellable
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET

_BATCH: Final = 1_000
_STREAM: Final = f"KV_{KV_BUCKET}"
_PREFIX: Final = f"$KV.{KV_BUCKET}."
_END: Final = "204"
_NOTHING: Final = "404"
_NOBODY: Final = "503"


async def scan_keys(bus: Bus, prefix: str) -> dict[str, Entry]:
    """What the keys below a prefix hold, deleted ones left out; a token of it may be `*`.

    A key that is written meanwhile comes with its old value or its new one.

    Raises:
        NoStream: there is no bucket.
        NoAnswer: not in time.
        BusError: the server refused.
    """
    found: dict[str, Entry] = {}
    start = 1
    while True:
        page = await _read_page(bus, _PREFIX + below(prefix), start)
        found.update(page.entries)
        if not page.is_more:
            return found
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
    ended: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def on_message(message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Sequence" in headers:
            page.take(message, headers)
        elif not ended.done():
            ended.set_result(headers)

    request = orjson.dumps({"seq": start, "batch": _BATCH, "next_by_subj": subject})
    inbox = bus.nc.new_inbox()
    try:
        async with (
            asyncio.timeout(REQUEST_TIMEOUT.total_seconds()),
            subscribed(bus, inbox, on_message),
        ):
            with cancellable():
                await bus.nc.publish(f"$JS.API.DIRECT.GET.{_STREAM}", request, inbox)
            told = await ended
    except (TimeoutError, nats.errors.Error) as e:
        raise NoAnswer(f"no answer for the keys {subject}: {e or type(e).__name__}") from e
    page.is_more = _is_more(told)
    return page


def _is_more(told: Mapping[str, str]) -> bool:
    status = told.get("Status", "")
    if status == _NOTHING:
        return False
    if status == _NOBODY:
        raise NoStream(f"nobody answers for {_STREAM}")
    if status != _END:
        raise BusError(f"the keys of {_STREAM}: {dict(told)}")
    return int(told.get("Nats-Num-Pending", "0")) > 0
