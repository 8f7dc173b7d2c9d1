"""Commands that hiredis writes are those that redis-py would have written."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.exceptions import DataError

from fleetbus.store.connection import packing
from support.rows import each_row

COMMANDS: list[tuple[Any, ...]] = [
    ("GET", "k"),
    ("CONFIG GET", "maxmemory"),
    (b"CLIENT NO-EVICT", b"ON"),
    ("SET", "schlüssel", "\N{SNOWMAN}", "PX", 1500),
    ("EVALSHA", "0" * 40, 2, "a", "b", b"", b"\x00\xff\r\n", "", -1, 10**17, 0.25),
    ("HSET", "k", "large", b"x" * 100_000, "view", memoryview(b"abc")),
]


def test_hiredis_writes_what_redis_py_writes():
    plain, packed = Connection(), packing(Connection)()
    for command in COMMANDS:
        assert b"".join(packed.pack_command(*command)) == b"".join(plain.pack_command(*command))
    assert b"".join(packed.pack_commands(COMMANDS)) == b"".join(plain.pack_commands(COMMANDS))


@each_row("value", [None, object(), ["a"]])
def test_what_is_no_value_of_redis_is_refused_as_redis_py_does(value: Any):
    for kind in (Connection, packing(Connection)):
        with pytest.raises(DataError):
            kind().pack_command("SET", "k", value)


@each_row("plain", [Connection, SSLConnection, UnixDomainSocketConnection])
def test_each_kind_of_connection_stays_what_it_is(plain: type[Connection]):
    assert issubclass(packing(plain), plain)
