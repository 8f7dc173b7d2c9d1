"""The value of a grant key, changed from two sides at once (rule W7)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fleetbus.bus.connection import Bus, NoStream, connected
from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.bus.key_scan import scan_keys
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import ReaderGroup, Selection, read_registration
from fleetbus.errors import BusError
from fleetbus.watchers.cluster_consent import has_consent, parse_incarnation
from fleetbus.watchers.grant_requests import (
    NOT_READ,
    GrantAnswer,
    GrantRequest,
    GrantRequests,
    change_grant_requests,
    read_grant_requests,
)
from fleetbus.watchers.resync import read_resync
from fleetbus_proto.keys import kv_accepted, kv_reader, kv_resync
from fleetbus_proto.resources import parse_resource

KEY = "eu1.grant.core.pods"


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="t") as client:
        await ensure_bucket(client)
        yield client


@pytest.fixture
def kv(bus: Bus) -> KeyValue:
    return KeyValue(bus)


def ask(replica: str, **fields: object) -> GrantRequest:
    return msgspec.structs.replace(GrantRequest(replica=replica, since=1, patience=60.0), **fields)


async def test_w7_sides_that_write_at_the_same_time_lose_nothing_of_each_other(kv: KeyValue):
    async def add(number: int) -> None:
        await change_grant_requests(kv, KEY, lambda asks: (*asks, ask(f"r{number}")))

    await asyncio.gather(*(add(number) for number in range(12)))
    grant = await read_grant_requests(kv, KEY)
    assert sorted(a.replica for a in grant.requests) == sorted(f"r{number}" for number in range(12))


async def test_w7_what_was_last_seen_spares_a_read_and_is_not_believed_blindly(kv: KeyValue):
    first = await change_grant_requests(kv, KEY, lambda _: (ask("a"),))
    await change_grant_requests(kv, KEY, lambda asks: (*asks, ask("b")))
    ask_counts: list[GrantRequests] = []

    def add(asks: GrantRequests) -> GrantRequests:
        ask_counts.append(asks)
        return (*asks, ask("c"))

    grant = await change_grant_requests(kv, KEY, add, first)
    assert [len(asks) for asks in ask_counts] == [1, 2]
    assert [a.replica for a in grant.requests] == ["a", "b", "c"]


async def test_w7_a_change_that_changes_nothing_writes_nothing(kv: KeyValue):
    assert (
        await change_grant_requests(kv, KEY, lambda asks: asks, await read_grant_requests(kv, KEY))
    ).requests == ()
    assert await kv.get(KEY) is None
    grant = await change_grant_requests(kv, KEY, lambda _: (ask("a"),))
    assert await change_grant_requests(kv, KEY, lambda asks: asks, grant) == grant
    entry = await kv.get(KEY)
    assert entry is not None
    assert entry.revision == grant.revision


async def test_w7_the_value_is_what_the_contract_says(kv: KeyValue):
    answer = GrantAnswer(received=5, at=6, granted=True, bytes=7)
    request = ask("r1", scope="s", bytes=3, epoch=4, answer=answer)
    grant = await change_grant_requests(kv, KEY, lambda _: (request, ask("r2")))
    assert json.loads(grant.value) == {
        "requests": [
            {
                "replica": "r1",
                "scope": "s",
                "since": 1,
                "patience": 60,
                "bytes": 3,
                "epoch": 4,
                "answer": {"received": 5, "at": 6, "granted": True, "bytes": 7},
            },
            {"replica": "r2", "since": 1, "patience": 60},
        ]
    }
    assert (await read_grant_requests(kv, KEY)).requests == grant.requests


@pytest.mark.parametrize("kind", [GrantRequest, GrantAnswer])
def test_w7_the_contract_names_every_field(kind: type[msgspec.Struct]):
    text = (Path(__file__).parents[3] / "proto" / "README.md").read_text(encoding="utf-8")
    section = text.partition("### Grants")[2].partition("\n## ")[0]
    named = set(re.findall(r"[`{ ](\w+)[`},]", section))
    assert {field.encode_name for field in msgspec.structs.fields(kind)} <= named


async def test_what_cannot_be_read_counts_as_no_asks_and_is_written_over(kv: KeyValue):
    await kv.put(KEY, b"\xff")
    assert (await read_grant_requests(kv, KEY)).requests == ()
    assert (
        len(
            (
                await change_grant_requests(kv, KEY, lambda asks: (*asks, ask("a")), NOT_READ)
            ).requests
        )
        == 1
    )


# --- reading many keys --------------------------------------------------------------------------


async def test_all_keys_below_a_prefix_are_read_in_pages(bus: Bus, kv: KeyValue):
    for number in range(7):
        await kv.put(f"c{number}.grant.core.pods", str(number).encode())
        await kv.put(f"c{number}.resync.core.pods", b"another")
    await kv.put("c0.grant.core.pods", b"again")
    await kv.delete("c3.grant.core.pods")
    entries = await scan_keys(bus, "*.grant", batch=3)
    assert {key.partition(".")[0]: entry.value for key, entry in entries.items()} == {
        "c0": b"again",
        "c1": b"1",
        "c2": b"2",
        "c4": b"4",
        "c5": b"5",
        "c6": b"6",
    }
    entry = await kv.get("c4.grant.core.pods")
    assert entry == entries["c4.grant.core.pods"]


async def test_no_key_below_a_prefix_is_an_empty_answer(bus: Bus):
    assert await scan_keys(bus, "*.grant") == {}


async def test_no_bucket_is_an_error_and_not_an_empty_answer(nats_url: str):
    async with connected(nats_url, name="t") as bus:
        with pytest.raises(NoStream):
            await scan_keys(bus, "*.grant")


async def test_writes_below_a_prefix_of_all_clusters_are_received(kv: KeyValue):
    received: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    async with kv.follow("*.grant", lambda key, value: received.put_nowait((key, value))):
        await kv.put("eu1.resync.core.pods", b"1")
        await kv.put("eu1.grant.core.pods", b"2")
        async with asyncio.timeout(15):
            assert await received.get() == ("eu1.grant.core.pods", b"2")


async def test_b9_a_prefix_that_no_key_can_have_is_refused(kv: KeyValue, bus: Bus):
    with pytest.raises(BusError, match="not a key"):
        await scan_keys(bus, "a b")
    with pytest.raises(BusError, match="not a key"):
        async with kv.follow(">", lambda _key, _value: None):
            raise AssertionError


@pytest.mark.parametrize(
    "value", [b"\xff", b'{"requests":[{"x":' + b"[" * 50_000, b'{"uid":"\xff"}']
)
async def test_b18_what_cannot_be_read_counts_as_not_there(kv: KeyValue, value: bytes):
    group = ReaderGroup({"c": Selection([])})
    reader = kv_reader("c", group.id)
    for key in (KEY, kv_accepted("eu1"), kv_resync("eu1", "core", "pods"), reader):
        await kv.put(key, value)
    assert (await read_grant_requests(kv, KEY)).requests == ()
    assert await read_resync(kv, "eu1", parse_resource("v1/pods")) is None
    assert not await has_consent(kv, "eu1", "uid", replaces="")
    assert await read_registration(kv, group) is None
    assert parse_incarnation(value) is None


@pytest.mark.parametrize("changed", [{"durable": "projector"}, {"durable": "d-1"}, {"filters": []}])
async def test_s4_a_registration_names_no_durable_of_others(kv: KeyValue, changed: dict[str, Any]):
    filters = ["fleetbus.events.>"]
    group = ReaderGroup({"c": Selection(filters)})

    async def write(*, durable: str = "c-1", filters: list[str] = filters) -> None:
        found = {"controllers": {"c": {"filters": filters, "digest": ""}}, "durable": durable}
        await kv.put(kv_reader("c", group.id), json.dumps(found).encode())

    await write()
    assert await read_registration(kv, group) is not None
    await write(**changed)
    assert await read_registration(kv, group) is None
