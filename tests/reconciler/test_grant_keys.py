"""Limits of what the projector keeps of the grant keys of one cluster: rules W7, S3, B18."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import kv_grant
from fleetbus_reconciler.list_grants.grant_keys import GrantKeys

MIB = 1024**2


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        await ensure_bucket(client)
        yield client


@pytest.fixture
def keys(bus: Bus) -> GrantKeys:
    return GrantKeys(bus=bus, kv=KeyValue(bus), on_write=lambda: None)


def value(size: int = 0, **fields: Any) -> bytes:
    """One ask, in a value of so many bytes."""
    ask = {"replica": "r", "since": 1, "patience": 60, **fields}
    return msgspec.json.encode({"requests": [ask]}).ljust(size)


def refused() -> float:
    return REGISTRY.get_sample_value("fleetbus_grant_keys_refused_total") or 0.0


async def test_s3_the_keys_of_one_cluster_are_kept_up_to_a_number_of_bytes(
    bus: Bus, keys: GrantKeys
):
    kv, before = KeyValue(bus), refused()
    for number in range(40):
        await kv.put(kv_grant("eu1", "core", f"r{number}"), value(60_000))
    await kv.put(kv_grant("eu1", "core", "long"), value(400_000))
    await kv.put(kv_grant("eu2", "core", "pods"), value())
    await keys.read()
    sizes = [len(entry.value) for key, entry in keys.held.items() if key.startswith("eu1.")]
    assert sum(sizes) <= MIB
    assert len(sizes) == MIB // 60_000
    assert kv_grant("eu2", "core", "pods") in keys.held
    assert refused() == before + 40 - len(sizes) + 1
    # What becomes short again is room for the next.
    for key in [key for key in keys.held if key.startswith("eu1.")]:
        await kv.put(key, value())
    keys.read_again()
    await keys.read()
    keys.read_again()
    await keys.read()
    assert len([key for key in keys.held if key.startswith("eu1.")]) > len(sizes)


async def test_s3_long_values_and_endless_keys_that_are_written_are_not_kept(keys: GrantKeys):
    before = refused()
    await keys.read()
    keys.receive(kv_grant("eu1", "core", "pods"), b"x" * 8 * MIB)
    assert refused() == before + 1
    assert keys.next_read_in() > 0
    for number in range(2_100):
        keys.receive(kv_grant("eu1", "core", f"r{number}"), value())
    assert refused() == before + 101
    keys.receive(kv_grant("eu2", "core", "pods"), value())
    assert refused() == before + 101


async def test_w7_a_write_that_was_received_is_read(bus: Bus, keys: GrantKeys):
    key = kv_grant("eu1", "core", "pods")
    await keys.read()
    keys.receive(key, value())
    assert keys.next_read_in() == 0
    await keys.read()
    assert keys.held == {}  # received before the bucket has it
    await KeyValue(bus).put(key, value())
    while not keys.held:
        async with asyncio.timeout(15):
            await asyncio.sleep(keys.next_read_in())  # until the read is due
            await keys.read()
    assert keys.held[key].value == value()


async def test_w7_a_write_that_was_sent_before_the_subscription_is_read_a_second_later(
    bus: Bus, keys: GrantKeys
):
    key = kv_grant("eu1", "core", "pods")
    await keys.read()
    await KeyValue(bus).put(key, value())  # sent before `follow`, stored after the first read
    await asyncio.sleep(keys.next_read_in())  # until the read is due
    await keys.read()
    assert keys.held[key].value == value()
    assert keys.next_read_in() > 60
