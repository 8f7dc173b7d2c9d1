"""The NATS permissions of a watcher and of a member of the pool, verb by verb (rule S3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from nats.aio.client import Client

from fleetbus.bus.connection import connected
from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus_proto.keys import (
    KV_BUCKET,
    kv_accepted,
    kv_access,
    kv_audit_request,
    kv_identity,
    kv_message_key,
    kv_resync,
    kv_watch_spec,
)
from support.eventually import eventually
from support.servers.restricted_nats import restricted_server

HUB_KEYS = [
    kv_accepted("eu1"),
    kv_access("eu1"),
    kv_identity("eu1"),
    kv_watch_spec("eu1"),
    kv_resync("eu1", "core", "pods"),
    kv_audit_request("eu1"),
]
DELETION = {"KV-Operation": "DEL"}


@dataclass
class Rights:
    """Somebody with restricted rights, and the owner's view of the bucket."""

    kv: KeyValue
    client: Client = field(default_factory=Client)
    refusals: list[str] = field(default_factory=list[str])

    async def note(self, error: Exception) -> None:
        self.refusals.append(str(error))

    async def may_write(self, key: str, headers: dict[str, str] | None = None) -> bool:
        return await self.may(f"$KV.{KV_BUCKET}.{key}", b"x", headers)

    async def may_read(self, key: str) -> bool:
        return await self.may(f"$JS.API.DIRECT.GET.KV_{KV_BUCKET}.$KV.{KV_BUCKET}.{key}")

    async def may(
        self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> bool:
        """Whether a request is answered well; else the server must have refused it."""
        count = len(self.refusals)
        asking = asyncio.create_task(
            self.client.request(subject, body, timeout=10, headers=headers)
        )
        await eventually(lambda: asking.done() or len(self.refusals) > count)
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert subject.lower() in self.refusals[-1].lower()
            return False
        return b'"error"' not in (await asking).data


@asynccontextmanager
async def restricted(
    folder: Path, user: str = "w", name: str = "watcher.eu1"
) -> AsyncGenerator[Rights]:
    async with restricted_server(folder) as address, AsyncExitStack() as stack:
        owner = await stack.enter_async_context(
            connected(f"nats://admin:p@{address}", name="owner")
        )
        await ensure_stream(owner)
        await ensure_bucket(owner)
        rights = Rights(KeyValue(owner))
        await rights.client.connect(
            f"nats://{user}:p@{address}", inbox_prefix=f"_INBOX.{name}", error_cb=rights.note
        )
        stack.push_async_callback(rights.client.close)
        yield rights


async def test_s3_a_watcher_reads_what_the_hub_says_of_its_cluster_and_cannot_write_it(
    tmp_path: Path,
):
    async with restricted(tmp_path) as rights:
        for key in HUB_KEYS:
            await rights.kv.put(key, b"of the hub")
            assert await rights.may_read(key)
            assert not await rights.may_write(key)
            assert not await rights.may_write(key, DELETION)
            entry = await rights.kv.get(key)
            assert entry is not None
            assert entry.value == b"of the hub"


async def test_s3_the_keys_of_a_watcher_end_at_its_cluster(tmp_path: Path):
    async with restricted(tmp_path) as rights:
        assert await rights.may_write("eu1.incarnation")
        assert await rights.may_read("eu1.incarnation")
        assert await rights.may_write("eu1.incarnation", DELETION)
        assert not await rights.may_read(kv_message_key("eu2"))
        for key in (
            "eu2.incarnation",
            kv_accepted("eu2"),
            "_controllers.copier",
            "_pool.lease.eu1",
        ):
            assert not await rights.may_read(key)
            assert not await rights.may_write(key)


async def test_s3_a_watcher_publishes_for_its_cluster_only(tmp_path: Path):
    async with restricted(tmp_path) as rights:
        for kind in ("events", "epochs", "status"):
            assert await rights.may(f"fleetbus.{kind}.eu1.x")
            assert not await rights.may(f"fleetbus.{kind}.eu2.x")
        assert not await rights.may("fleetbus.control.eu1")
        assert not await rights.may("$JS.API.STREAM.INFO.FLEETBUS_EVENTS")
        assert not await rights.may("$JS.API.DIRECT.GET.KV_FLEETBUS_STATE")


async def test_s3_the_pool_writes_for_every_cluster_and_nothing_that_is_the_hubs(tmp_path: Path):
    async with restricted(tmp_path, "pool", "_pool") as rights:
        for key in HUB_KEYS:
            await rights.kv.put(key, b"of the hub")
            assert await rights.may_read(key)
            assert not await rights.may_write(key)
        assert not await rights.may_write("_controllers.copier")
        for key in ("eu1.incarnation", "eu2.incarnation", "_pool.member.a", "_pool.lease.eu1"):
            assert await rights.may_write(key)


@pytest.mark.parametrize("scope", ["all", "sub"])
async def test_s3_no_header_empties_the_bucket_or_the_stream(tmp_path: Path, scope: str):
    async with restricted(tmp_path) as rights:
        await rights.kv.put("eu2.incarnation", b"1")
        rollup = {"Nats-Rollup": scope}
        assert not await rights.may_write("eu1.x", rollup)
        assert not await rights.may("fleetbus.events.eu1.x", b"x", rollup)
        assert await rights.kv.get("eu2.incarnation") is not None
