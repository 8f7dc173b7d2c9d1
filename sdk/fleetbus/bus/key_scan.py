"""Reads all keys below a prefix of the bucket: a thousand, or a MiB, in one request."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final

from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus
from fleetbus.bus.key_value import Entry, below
from fleetbus.bus.stream_reads import direct_get, pending_after
from fleetbus_proto.keys import KV_BUCKET

_BATCH: Final = 1_000
_BATCH_BYTES: Final = 1024**2
"""Size of a page: a watcher may fill the bucket with values of the largest size."""
_STREAM: Final = f"KV_{KV_BUCKET}"
_PREFIX: Final = f"$KV.{KV_BUCKET}."


async def scan_keys(bus: Bus, prefix: str, *, batch: int = _BATCH) -> dict[str, Entry]:
    """Read all keys below a prefix, without deleted ones; a token of the prefix may be `*`.

    A key that is written meanwhile is returned with its old or its new value.

    Raises:
        NoStream: there is no bucket.
        NoAnswer: no answer in time.
        BusError: the server refused.
    """
    entries: dict[str, Entry] = {}
    async for page in scan_pages(bus, prefix, batch=batch):
        entries.update(page)
    return entries


async def scan_pages(
    bus: Bus, prefix: str, *, batch: int = _BATCH
) -> AsyncGenerator[dict[str, Entry]]:
    """The same page by page, for keys of others, which may be too many to hold at once.

    Raises:
        NoStream, NoAnswer, BusError: as for `scan_keys`.
    """
    start = 1
    while True:
        page = await _read_page(bus, _PREFIX + below(prefix), start, batch)
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


async def _read_page(bus: Bus, subject: str, start: int, batch: int) -> _Page:
    page = _Page()
    size = {"batch": batch, "max_bytes": _BATCH_BYTES}
    request = {"seq": start, "next_by_subj": subject, **size}
    end = await direct_get(bus, _STREAM, request, subject, page.take)
    page.is_more = pending_after(_STREAM, end) > 0
    return page
