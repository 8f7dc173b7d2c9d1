"""The leases of the pool, read from a bucket of which any replica may answer (rules W22, B19)."""

from __future__ import annotations

import time

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket
from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import kv_pool_lease
from fleetbus_watcher.pool.records import PoolStore


@pytest.mark.slow
async def test_w22_leases_are_read_again_while_a_replica_lacks_one_that_we_took(nats_url: str):
    async with connected(nats_url, name="_pool.m1") as bus:
        await ensure_bucket(bus)
        kv = KeyValue(bus)
        store = PoolStore(bus, kv)
        assert await store.take("c1", "m1", None) is not None
        begun = time.monotonic()
        assert (await store.leases())["c1"].member == "m1"
        assert time.monotonic() - begun < 1
        # As if the write had been acknowledged by the leader, and this server did not have it.
        kv.seen.note(kv_pool_lease("c1"), 1_000)
        assert (await store.leases())["c1"].member == "m1"
        assert time.monotonic() - begun > 1.5
