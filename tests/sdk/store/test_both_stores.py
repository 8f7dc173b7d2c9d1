"""Every script of ours is one that Valkey and Redis 7 take (rule P16).

What is marked `stores` in `tests/sdk` compares the scripts of snapshot, audits and record with
their models, on Redis in few steps; here are the others.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

import fleetbus
from fleetbus.deletions.budget import Decision, Deletion, DeletionBudget, OwnerLimits
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore, Offset, claimed
from fleetbus.snapshot.update_records import Records
from fleetbus.store.connection import connect
from fleetbus.workqueue import Add, Backoff, QueuePolicy, RedisQueue, scripts
from fleetbus.workqueue.items import list_items, read_item, run_now
from support.stores.snapshot import Snapshot
from support.stores.workqueue import named

SCRIPTS = sorted(Path(fleetbus.__file__).parent.rglob("*.lua"))
COMMAND = re.compile(r"""redis\.p?call\(\s*['"]([A-Za-z]+)['"]""")
QUEUE = (
    *("add", "add_after", "done", "extend", "forget", "give_back", "list_held", "list_items"),
    *("read_item", "reap", "release", "retry", "run_now", "stats", "take"),
)
OPENINGS = ("", "#!lua\n", "#!lua flags=allow-oom\n")

pytestmark = pytest.mark.stores("valkey", "redis")


async def test_p16_both_take_every_script_and_know_every_command_in_it(redis: Redis):
    assert len(SCRIPTS) > 30
    names: set[str] = set()
    for script in SCRIPTS:
        text = script.read_text()
        names |= {name.upper() for name in COMMAND.findall(text)}
        for opening in OPENINGS:
            await redis.script_load(opening + text)
    await redis.script_load(scripts.load("add").text)
    commands = {name.upper() for name in await redis.command()}
    assert "ZRANGE" in names
    assert names <= commands


async def test_p16_every_call_of_the_queue_works_on_both(redis: Redis):
    await redis.script_flush()
    hours = Backoff(timedelta(hours=1), 2, timedelta(hours=2))
    queue = RedisQueue(redis, "copier", policy=QueuePolicy(backoff=hours))
    for name in ("done", "again", "later", "back", "failed", "forgotten", "poison"):
        await queue.add([Add(named(name))])
    leases = {lease.request.name: lease for lease in await queue.take(100)}
    assert len(await queue.processing()) == 7
    assert await queue.extend(list(leases.values())) == []
    assert await queue.done([leases["done"]]) == []
    await queue.requeue_after(leases["later"], timedelta(hours=1))
    assert await queue.give_back([leases["back"]]) == []
    assert await queue.retry(leases["failed"])
    await queue.forget(leases["forgotten"])
    await queue.add_after(named("future"), timedelta(hours=1))
    await queue.reap()
    stats = await queue.stats()
    assert (stats.delayed, stats.processing, stats.failing) == (3, 5, 1)
    items = await list_items(redis, "copier", 10)
    assert {item.request.name for item in items.shown} >= {"back", "failed", "future", "later"}
    assert await run_now(redis, "copier", named("failed")) == 1
    assert (await read_item(redis, named("failed"))).failures == 1
    assert await queue.quarantined() == []
    assert not await queue.release(named("poison"))
    await queue.aclose()
    called = [name for name in QUEUE if (await redis.script_exists(scripts.load(name).digest))[0]]
    assert sorted(QUEUE) == called


async def test_p11_checkpoints_and_claims_work_on_both(redis: Redis):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")
    beside = Beside.shard_of_snapshot(snapshot.keys, 0, "projector")
    store = CheckpointStore(redis, snapshot.keys, beside)
    empty = await store.read("projector")
    assert await store.write("projector", empty, Offset("today", 7, 5))
    checkpoint = await store.read("projector")
    assert checkpoint.offset == Offset("today", 7, 5)
    assert (checkpoint.run, checkpoint.identity) == (empty.identity, empty.identity)
    assert not await store.write("projector", empty, Offset("today", 8, 5))  # it has one
    async with claimed(redis, beside.claim) as is_ours, claimed(redis, beside.claim) as is_theirs:
        assert (is_ours, is_theirs) == (True, False)
    async with claimed(redis, beside.claim) as is_ours:
        assert is_ours


async def test_p14_records_change_together_on_both(redis: Redis):
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1")

    def change(records: Records) -> Records:
        return records._replace(cluster=replace(records.cluster, server_version="v1.31"))

    assert await snapshot.writer.update_records("eu1", change)
    record = await snapshot.reader.cluster("eu1")
    assert record is not None
    assert record.server_version == "v1.31"
    assert not await snapshot.writer.update_records("eu9", change)


async def test_d8_the_budget_of_deletions_works_on_both(redis: Redis):
    budget = DeletionBudget(redis)
    owner = OwnerLimits(uid="u", clusters=3, objects=20, percent=50, on_record=4)
    both = [Deletion(cluster="eu1", object=name) for name in ("a", "b")]
    assert (await budget.spend(owner, both, allowed=2)).decision is Decision.GRANTED
    assert (await budget.spend(owner, both, allowed=2)).decision is Decision.GRANTED
    more = [Deletion(cluster="eu1", object="c")]
    assert (await budget.spend(owner, more, allowed=2)).decision is Decision.FLEET
    assert await budget.used() == 2


async def test_p16_both_pass_the_checks_at_start(valkey_url: str):
    await (await connect(valkey_url)).aclose()
