"""The client of a Cluster: three masters, redirections, transactions, failures (rules P16, Q11)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import redis.exceptions as errors

from fleetbus.errors import StoreError
from fleetbus.reconcile import Request
from fleetbus.store import shared_connection, topology
from fleetbus.store.cluster import ClusterRedis, slot_of
from fleetbus.store.connection import connect
from fleetbus.workqueue import Add, QueuePolicy, RedisQueue
from fleetbus.workqueue.heartbeat import connect_blocking
from fleetbus.workqueue.scripts import Transitions
from fleetbus_devfleet.processes.servers import valkey_server
from support.eventually import eventually
from support.servers.store_nodes import port_of
from support.servers.valkey_cluster import ValkeyCluster, ask, valkey_cluster
from support.stores.documented_users import PASSWORD, documented_user
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

TAGS = [f"{{fleet:{shard}}}" for shard in range(8)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[ValkeyCluster]:
    context = valkey_cluster(tmp_path_factory.mktemp("cluster"))
    with asyncio.Runner() as runner:  # the servers outlive the loop of each test
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def client(cluster: ValkeyCluster) -> AsyncGenerator[Redis]:
    client = await connect(cluster.url)
    await client.flushall()
    try:
        yield client
    finally:
        await client.aclose()


async def test_commands_pipelines_and_scripts_reach_the_master_of_their_keys(client: Redis):
    async with client.pipeline(transaction=False) as pipe:
        for tag in TAGS:
            pipe.set(f"{tag}:a", tag)
            pipe.incr(f"{tag}:count")
        assert await pipe.execute() == [True, 1] * len(TAGS)
    assert [await client.get(f"{tag}:a") for tag in TAGS] == [tag.encode() for tag in TAGS]
    script = client.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    answers = await asyncio.gather(*(script(keys=[f"{tag}:count"], args=[2]) for tag in TAGS))
    assert answers == [3] * len(TAGS)
    masters = cast("ClusterRedis", client).masters
    assert len(masters) == 3
    assert all([await master.dbsize() for master in masters]), "every master holds keys"
    scanned = [key async for key in cast("Any", client).scan_iter("{fleet:*", count=10)]
    assert len(scanned) == 2 * len(TAGS)


async def test_questions_about_all_keys_are_answered_by_all_masters(client: Redis):
    for tag in TAGS:
        await client.set(f"{tag}:a", "x")
    assert await client.dbsize() == len(TAGS)
    all_keys = cast("list[bytes]", await client.keys("{fleet:*"))
    assert sorted(all_keys) == sorted(f"{tag}:a".encode() for tag in TAGS)
    await client.flushdb()
    assert await client.dbsize() == 0


async def test_the_thread_that_extends_leases_reaches_the_queue(
    cluster: ValkeyCluster, client: Redis
):
    queue, policy = RedisQueue(client, "pods"), QueuePolicy()
    await queue.add([Add(Request("pods", "eu1", "ns", "a"))])
    leases = await queue.take(1)
    blocking = connect_blocking(cluster.url, policy)
    try:
        extend = Transitions("pods", policy).extend(leases)
        assert await asyncio.to_thread(extend.send_blocking, blocking) == []
        await queue.done(leases)
        assert await asyncio.to_thread(extend.send_blocking, blocking) == [0], "it is lost"
    finally:
        blocking.close()


async def test_a_transaction_goes_to_one_master_and_is_refused_across_hash_tags(client: Redis):
    async with client.pipeline(transaction=True) as pipe:
        pipe.set("{a}:1", "x")
        pipe.get("{a}:1")
        assert await pipe.execute() == [True, b"x"]
    async with client.pipeline(transaction=True) as pipe:
        pipe.set("{a}:1", "y")
        pipe.set("{b}:1", "y")
        with pytest.raises(errors.DataError, match="share a hash tag"):
            await pipe.execute()
    assert await client.get("{a}:1") == b"x"


async def test_errors_of_one_command_are_those_of_its_caller(client: Redis):
    await client.set("{a}:text", "x")
    with pytest.raises(errors.ResponseError, match="not an integer"):
        await client.incr("{a}:text")
    async with client.pipeline(transaction=False) as pipe:
        pipe.incr("{a}:text")
        pipe.incr("{b}:count")
        refused, count = await pipe.execute(raise_on_error=False)
    assert isinstance(refused, errors.ResponseError)
    assert count == 1


@pytest.mark.slow
async def test_a_moved_slot_is_found_and_a_script_of_it_runs_once(
    cluster: ValkeyCluster, client: Redis
):
    key = "{moving}:count"
    await client.set(key, 1)
    source = await cluster.owner_of(key)
    target = next(server for server in cluster.masters if server is not source)
    slot = str(slot_of(("GET", key)))
    of_source, of_target = [(await ask(node, "CLUSTER MYID")).decode() for node in (source, target)]
    await ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", of_source)
    await ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", of_target)
    script = client.register_script("return redis.call('INCR', KEYS[1])")
    assert await script(keys=[key]) == 2, "the key is still at the source"
    where = ("127.0.0.1", str(port_of(target)))
    await ask(source, "MIGRATE", *where, key, "0", "1000")
    assert await script(keys=[key]) == 3, "the source answers ASK"
    async with client.pipeline(transaction=False) as pipe:
        pipe.incr(key)
        pipe.get("{other}:key")
        assert await pipe.execute() == [4, None]
    for server in (target, source, *cluster.masters):
        await ask(server, "CLUSTER SETSLOT", slot, "NODE", of_target)
    assert await script(keys=[key]) == 5, "the source answers MOVED"
    async with client.pipeline(transaction=True) as pipe:
        pipe.incr(key)
        pipe.incr(key)
        assert await pipe.execute() == [6, 7]


async def test_notifications_come_through_whichever_node_was_subscribed(client: Redis):
    async with client.pubsub() as subscription:
        await subscription.subscribe("{q:pods}:notify")
        assert await subscription.get_message(timeout=5) is not None
        for number in range(3):
            publish = "return redis.call('PUBLISH', KEYS[1], ARGV[1])"
            await cast("Any", client.eval(publish, 1, "{q:pods}:notify", str(number)))
            message = await cast("Any", subscription).get_message(timeout=5)
            assert message is not None
            assert message["data"] == str(number).encode()


async def test_s8_the_rights_that_the_page_of_the_store_lists_suffice(cluster: ValkeyCluster):
    user, command = "projector", documented_user("projector")
    for server in cluster.masters:
        await ask(server, "FLUSHALL")
        await ask(server, *command)
    client = await connect(cluster.url.replace("://", f"://{user}:{PASSWORD}@"))
    try:
        snapshot = Snapshot(client, shards=4)
        await snapshot.set_up("eu1", "us1")
        sources = [Source(cluster=name) for name in ("eu1", "us1")]
        await snapshot.apply(*(source.added("web", 5) for source in sources))
        assert await snapshot.names(clusters=["eu1", "us1"]) == ["web", "web"]
        with pytest.raises(errors.NoPermissionError):
            await client.set("of another program", "x")
    finally:
        await client.aclose()
        for server in cluster.masters:
            await ask(server, "ACL DELUSER", user)


@pytest.mark.slow
async def test_a_cluster_that_lost_a_master_serves_the_other_slots_and_says_so_for_its_own(
    tmp_path: Path,
):
    async with valkey_cluster(tmp_path) as cluster:
        client = await connect(cluster.url)
        try:
            lost = await cluster.owner_of(TAGS[0])
            others = [tag for tag in TAGS if await cluster.owner_of(tag) is not lost]
            assert others
            lost.kill()
            with pytest.raises(errors.RedisError):
                await client.set(TAGS[0], "x")
            for tag in others:
                assert await client.set(tag, "x")
            again = await connect(cluster.url)  # a process that starts now
            assert await again.get(others[0]) == b"x"
            await again.aclose()
            await lost.restart()
            await eventually(lambda: answers(client, TAGS[0]))
        finally:
            await client.aclose()


async def answers(client: Redis, key: str) -> bool:
    try:
        return bool(await client.set(key, "y"))
    except errors.RedisError:
        return False


async def test_a_cluster_without_any_node_and_one_without_all_slots_are_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="does not answer"):
        await connect("redis+cluster://user:secret@127.0.0.1:1,127.0.0.1:2")
    async with valkey_server(dir=tmp_path, options=["--cluster-enabled", "yes"]) as alone:
        await ask(alone, "CLUSTER ADDSLOTSRANGE", "0", "100")
        with pytest.raises(StoreError, match="some slots of the Cluster have no server"):
            await connect(alone.url.replace("redis://", "redis+cluster://"))


async def test_an_address_in_the_form_of_another_kind_of_store_says_which_to_write(
    cluster: ValkeyCluster, valkey_url: str
):
    host = valkey_url.removeprefix("redis://").partition("/")[0]
    for url, why in (
        (cluster.masters[0].url, r"a node of a Cluster: write redis\+cluster://"),
        (f"redis+cluster://{host}", "in no Cluster: write redis://"),
        (f"redis+sentinel://{host}/store", "no Sentinel: check host and port"),
    ):
        with pytest.raises(StoreError, match=why):
            await connect(url)


async def test_commands_at_a_node_that_is_replaced_fail_and_cancel_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # A task whose call raised CancelledError would end as if it had been stopped.
    monkeypatch.setattr(topology, "ANSWER_WITHIN", timedelta(milliseconds=100))
    monkeypatch.setattr(topology, "SILENT_AFTER", timedelta(milliseconds=100))
    monkeypatch.setattr(shared_connection, "PATIENCE", timedelta(milliseconds=100))
    options = ["--cluster-enabled", "yes"]
    async with (
        valkey_server(dir=tmp_path / "old", options=options) as old,
        valkey_server(dir=tmp_path / "new", options=options) as new,
    ):
        for server in (old, new):
            await ask(server, "CLUSTER ADDSLOTSRANGE", "0", "16383")
        places = ",".join(server.url.removeprefix("redis://") for server in (old, new))
        client = cast("ClusterRedis", await connect(f"redis+cluster://{places}"))
        [node] = client.masters  # each of them says that it holds all slots
        port = node.connection_pool.connection_kwargs["port"]
        lost = next(server for server in (old, new) if port_of(server) == port)
        os.kill(lost.pid, signal.SIGSTOP)
        try:
            sent = asyncio.ensure_future(client.get("a"))
            await asyncio.sleep(0.02)  # the first one is sent
            unsent = asyncio.ensure_future(client.get("a"))
            async with asyncio.timeout(10):  # it hangs: nobody asks, and no error tells
                outcomes = await asyncio.gather(sent, unsent, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [errors.ConnectionError] * 2
            assert client.masters != [node]
        finally:
            os.kill(lost.pid, signal.SIGCONT)
            await client.aclose()


def test_the_slot_of_a_command_is_that_of_its_first_key():
    assert slot_of(("GET", "foo")) == 12182
    assert slot_of(("EVALSHA", "digest", 1, "foo", "bar")) == 12182
    assert slot_of(("EVAL", "text", "1", b"foo")) == 12182
    assert slot_of(("HGET", "{foo}:x", "y")) == 12182
    assert slot_of(("EVAL", "text", 0)) is None
    assert slot_of(("INFO", "server")) is None
    assert slot_of(("SCRIPT LOAD", "text")) is None
