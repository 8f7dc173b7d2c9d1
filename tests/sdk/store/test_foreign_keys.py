"""A key of ours that another program wrote is named, once, and work goes on when it is gone."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

import fleetbus.workqueue
from fleetbus.controller.controller import Controller
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus.store.foreign_keys import ForeignKeyError, type_of
from fleetbus.workqueue import Add, QueueUnavailableError, RedisQueue
from fleetbus_proto import keys
from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Rig
from support.rigs.worker import FIRST, POLICY, Notes, working
from support.stores.snapshot import Snapshot, Source

DELAYED = keys.queue("copier", "delayed")
KINDS = {"STRING", "HASH", "SET", "ZSET", "STREAM", "LIST"}


@pytest.fixture
async def client(valkey_url: str) -> AsyncGenerator[Redis]:
    connected = await connect(valkey_url)
    yield connected
    await connected.aclose()


def lines_of(
    lines: Sequence[Mapping[str, Any]], event: str = "foreign_key_found"
) -> list[Mapping[str, Any]]:
    return [line for line in lines if line["event"] == event]


async def test_p9_a_queue_that_another_program_wrote_into_is_reported_once_and_goes_on_when_mended(
    client: Redis, redis: Redis, valkey_url: str
) -> None:
    queue, notes = RedisQueue(client, "copier", policy=POLICY), Notes()
    await redis.lpush(DELAYED, "mine")
    with capture_logs() as lines:
        async with working(queue, valkey_url, notes):
            await queue.add([Add(FIRST)])
            for _ in range(3):
                with pytest.raises(QueueUnavailableError, match=re.escape(DELAYED)):
                    await queue.take(1)
            await eventually(lambda: lines_of(lines, "queue_unavailable"))
            await redis.rename(DELAYED, "theirs")
            await eventually(lambda: notes.finished == [FIRST])
    [line] = lines_of(lines)
    assert line["log_level"] == "error"
    assert (line["key"], line["found"], line["expected"]) == (DELAYED, "list", "zset")
    assert "rename or delete" in line["hint"]
    [waits] = lines_of(lines, "queue_unavailable")
    assert DELAYED in waits["error"]
    await queue.aclose()


async def test_p9_a_key_whose_name_a_script_makes_is_found_too(client: Redis, redis: Redis) -> None:
    snapshot = Snapshot(client)
    await snapshot.set_up("eu1")
    key = SnapshotKeys().labels("eu1", "core/pods", "app=web")
    await redis.set(key, "mine")
    event = Source().listed("web", 1, metadata={"labels": {"app": "web"}})
    with capture_logs() as lines:
        for _ in range(2):
            with pytest.raises(ForeignKeyError, match=re.escape(f"{key} is a string, not a set")):
                await snapshot.apply(event)
        await redis.delete(key)
        await snapshot.apply(event)
        await redis.delete(SnapshotKeys().clusters(0))
        await redis.sadd(SnapshotKeys().clusters(0), "mine")
        with pytest.raises(ForeignKeyError, match="clusters is a set, not a hash"):
            await snapshot.apply(event)
    assert [line["key"] for line in lines_of(lines)] == [key, SnapshotKeys().clusters(0)]


async def test_p9_a_read_of_several_commands_names_the_key_too(client: Redis, redis: Redis) -> None:
    await redis.lpush(SnapshotKeys().owners(0, "u1"), "mine")
    async with client.pipeline(transaction=True) as pipe:
        pipe.smembers(SnapshotKeys().owners(0, "u1"))
        with pytest.raises(ForeignKeyError, match="owners:u1 is a list, not a set"):
            await pipe.execute()


async def test_a_command_of_ours_that_is_wrong_itself_blames_nobody(client: Redis) -> None:
    await SnapshotReader(client, SnapshotKeys()).clusters()
    await client.set("of nobody", "x")
    with capture_logs() as lines, pytest.raises(Exception, match="WRONGTYPE") as caught:
        await client.lpush("of nobody", "y")  # type: ignore[misc]
    assert not isinstance(caught.value, ForeignKeyError)
    assert lines_of(lines) == []


def test_the_types_of_keys_are_those_that_their_documents_name() -> None:
    builders = [
        *inspect.getmembers(SnapshotKeys(4), inspect.ismethod),
        *inspect.getmembers(keys, inspect.isfunction),
    ]
    of_snapshot = {
        function(*"xyz"[: len(inspect.signature(function).parameters)]): kind.lower()
        for _, function in builders
        if (kind := (function.__doc__ or "-").split()[0].strip(",:")) in KINDS
    }
    assert len(of_snapshot) >= 20
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", fleetbus.workqueue.__doc__ or "", re.MULTILINE)
    of_queue = {
        keys.queue("copier", suffix): kind.lower() for suffix, kind in rows if kind.isupper()
    }
    assert len(of_queue) >= 18
    for key, kind in {**of_snapshot, **of_queue}.items():
        assert type_of(key) == kind, key
    assert type_of("fleetbus:other") == type_of("another") == ""


async def test_the_types_of_keys_are_those_of_a_store_in_use(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    rig, runs = await open_rig("a"), list[str]()
    controller = Controller("busy")
    controller.watch("v1/pods", selector="app=web")

    @controller.reconcile
    async def fail_or_wait(request: Request, _fleet: Fleet) -> Result:
        runs.append(request.name)
        if request.name == "bad":
            raise ValueError
        return Result(requeue_after=timedelta(hours=1))

    for name in ("bad", "good", "gone"):
        rig.clusters["a"].create("v1/pods", pod(name, labels={"app": "web"}), "default")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await eventually(lambda: {"bad", "good", "gone"} <= set(runs))
    rig.clusters["a"].delete("v1/pods", "default", "gone")
    await eventually(lambda: "gone" in runs[runs.index("gone") + 1 :])
    kinds = {key: await kind_of(rig.redis, key) for key in await names_of_keys(rig.redis)}
    standing = {key: kind for key, kind in kinds.items() if kind != "none"}  # gone meanwhile
    assert len(standing) >= 20
    assert {key: type_of(key) for key in standing} == standing


async def names_of_keys(redis: Redis) -> list[str]:
    return [key.decode() for key in cast("list[bytes]", await redis.keys("fleetbus:*"))]


async def kind_of(redis: Redis, key: str) -> str:
    return cast("bytes", await redis.type(key)).decode()
