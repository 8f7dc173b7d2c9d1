"""Raw access to the key-value bucket: direct reads, compare-and-set writes.

It uses plain requests, because a watcher has rights to its own keys only (rule S3): nats-py's
helpers ask for stream information first and would fail.

In a NATS cluster any replica answers a read, also one that lags behind: what one instance has read
or written, its later reads find, too. A newer write of another process may still be missed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
import orjson
from nats.aio.msg import Msg

from fleetbus.bus.connection import Bus, subscribed
from fleetbus.bus.recent_revisions import POLL, RecentRevisions
from fleetbus.errors import BusError
from fleetbus_proto.keys import KV_BUCKET

DECODE_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Raised by decoding a value: a writer with the right to a key may write anything there, which must
not harm others (rule B18)."""
WRONG_LAST_SEQUENCE: Final = 10071
_WRITE_IN_PROCESS: Final = 10164
"""In a NATS cluster: another conditional write of the key is not stored yet."""
_ACTUAL: Final = re.compile(r"wrong last sequence: (\d+)")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and its revision, for a compare-and-set."""

    value: bytes
    revision: int


class KeyValue:
    """Raw access to a bucket of NATS: direct reads, compare-and-set writes.

    Every method raises NoStream if there is no bucket, NoAnswer if the outcome is unknown.

    Attributes:
        seen: the revisions that this instance has read or written lately.
    """

    def __init__(self, bus: Bus, bucket: str = KV_BUCKET) -> None:
        self._bus = bus
        self._stream = f"KV_{bucket}"
        self._prefix = f"$KV.{bucket}."
        self.seen = RecentRevisions()

    async def get(self, key: str) -> Entry | None:
        """The value of a key; None if it was never written, or deleted."""
        entry, is_deleted = await self._read(key)
        return None if is_deleted else entry

    async def put(self, key: str, value: bytes, *, ttl: str = "") -> int:
        """Write a key unconditionally, with a TTL like `10m` or for ever; return its revision."""
        written = await self._write(key, value, {"Nats-TTL": ttl} if ttl else {})
        if written is None:
            raise BusError(f"key {key!r}: the write was refused although it has no condition")
        return written

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Write a key only at this revision, 0 for no key; return the new revision, else None."""
        expected = "Nats-Expected-Last-Subject-Sequence"
        written = await self._write(key, value, {expected: str(revision)})
        if written is not None or revision:
            return written
        entry, is_deleted = await self._read(key)
        return await self.update(key, value, entry.revision) if entry and is_deleted else None

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete a key if it exists; with a revision, only if it was not written since."""
        headers = {"KV-Operation": "DEL"}
        if revision is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(revision)
        await self._write(key, b"", headers)

    @asynccontextmanager
    async def follow(self, prefix: str, wake: Callable[[str, bytes], None]) -> AsyncGenerator[None]:
        """Call `wake(key, value)` at each later write below a prefix, while the block lasts.

        A token of the prefix may be `*`. It is a plain subscription: writes are missed while
        disconnected, so read again after a reconnect; a write may be received before the bucket has
        it, and also if its compare-and-set failed.
        """

        async def on_message(message: Msg) -> None:
            wake(message.subject.removeprefix(self._prefix), message.data)

        async with subscribed(self._bus, self._prefix + below(prefix), on_message):
            yield

    async def _read(self, key: str) -> tuple[Entry | None, bool]:
        while True:
            entry, is_deleted = await self._read_once(key)
            if not self.seen.is_outdated(key, entry.revision if entry is not None else 0):
                if entry is not None:
                    self.seen.note(key, entry.revision, may_be_deleted=is_deleted)
                return entry, is_deleted
            await asyncio.sleep(POLL.total_seconds())

    async def _read_once(self, key: str) -> tuple[Entry | None, bool]:
        subject = f"$JS.API.DIRECT.GET.{self._stream}.{self._prefix}{_checked(key)}"
        message = await self._bus.request(subject)
        headers = message.headers or {}
        if headers.get("Status") == "404":
            return None, False
        if "Nats-Sequence" not in headers:
            raise BusError(f"key {key!r}: {headers.get('Description') or headers}")
        is_deleted = headers.get("KV-Operation") in ("DEL", "PURGE")
        return Entry(message.data, int(headers["Nats-Sequence"])), is_deleted

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> int | None:
        message = await self._bus.request(
            self._prefix + _checked(key), value, headers=headers or None
        )
        answer = cast("dict[str, Any]", orjson.loads(message.data))
        if "error" not in answer:
            self.seen.note(key, int(answer["seq"]), may_be_deleted="KV-Operation" in headers)
            return int(answer["seq"])
        problem = str(answer["error"].get("description", answer["error"]))
        if answer["error"].get("err_code") not in (WRONG_LAST_SEQUENCE, _WRITE_IN_PROCESS):
            raise BusError(f"key {key!r}: {problem}")
        if (actual := _ACTUAL.search(problem)) and actual[1] != "0":
            # So that the caller does not read an older one.
            self.seen.note(key, int(actual[1]), may_be_deleted=True)
        return None


def below(prefix: str) -> str:
    """The filter for all keys below a prefix, of which a token may be `*`."""
    _checked(prefix.replace("*", "-"))
    return f"{prefix}.>"


def _checked(key: str) -> str:
    # Every client must be able to read a key, and no key has the name of an object (rule B8).
    if not _KEY.fullmatch(key):
        raise BusError(f"{key!r} is not a key of a NATS bucket")
    return key
