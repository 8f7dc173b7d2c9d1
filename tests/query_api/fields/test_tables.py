"""Columns that are kept: read once, shared, current, and within a bound."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fleetbus.kube.field_paths import FieldPath
from fleetbus.snapshot import ClusterRecord, SnapshotReader
from fleetbus.snapshot.reads.feed import Feed
from fleetbus_proto.keys import SnapshotKeys
from fleetbus_query_api.feed.tail import FeedTail
from fleetbus_query_api.fields.table import Place
from fleetbus_query_api.fields.tables import FieldTables
from fleetbus_query_api.limits.time_slices import TimeSlices
from support.eventually import eventually
from support.stores.snapshot import Snapshot, Source

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from redis.asyncio import Redis

PHASE = FieldPath.parse("status.phase")
NODE = FieldPath.parse("spec.nodeName")
PODS = Place("eu1", "core/pods")
_MUCH = 64 * 1024**2


@dataclass
class Rig:
    """Tables over a snapshot, and how many rows were read for them."""

    snapshot: Snapshot
    reader: SnapshotReader
    tail: FeedTail
    tables: FieldTables
    reads: list[int]
    version: int = 0

    async def put(self, name: str, phase: str | None, *, cluster: str = "eu1") -> None:
        self.version += 1
        tree = {"metadata": {"name": name}, "status": {"phase": phase}, "spec": {"nodeName": name}}
        body = None if phase is None else msgspec.json.encode(tree)
        source = Source(cluster=cluster)
        await self.snapshot.apply(source.added(name, self.version, body=body))

    async def delete(self, name: str) -> None:
        self.version += 1
        await self.snapshot.apply(Source().deleted(name, self.version))

    async def values(self, path: FieldPath = PHASE, place: Place = PODS) -> dict[str, Any] | None:
        """Ask: the value of each object by name; None if there is no room."""
        await self.tables.catch_up()
        async with self.tables.open([place], [path]) as tables:
            table = tables.get(place)
            if table is None:
                return None
            async with table.lock:
                column = table.columns[path]
                names = [key.decode().partition("/")[2] for key in table.keys]
                return {name: column.get(row) for row, name in enumerate(names)}

    def with_room(self, most_bytes: int) -> None:
        self.tables = FieldTables(
            reader=self.reader, tail=self.tail, slices=TimeSlices(), most_bytes=most_bytes
        )


@asynccontextmanager
async def tables_rig(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Rig]:
    snapshot = Snapshot(redis)
    await snapshot.set_up()
    for cluster in ("eu1", "us1"):
        await snapshot.writer.put_cluster(cluster, ClusterRecord(name=cluster))
    keys = SnapshotKeys()
    reader, tail = SnapshotReader(redis, keys), FeedTail(Feed(redis, keys))
    reads: list[int] = []
    read = reader.rows.read

    async def counted(*args: Any, **fields: Any) -> Any:
        table = await read(*args, **fields)
        reads.append(len(table))
        return table

    monkeypatch.setattr(reader.rows, "read", counted)
    tables = FieldTables(reader=reader, tail=tail, slices=TimeSlices(), most_bytes=_MUCH)
    async with tail.running():
        yield Rig(snapshot, reader, tail, tables, reads)


@pytest.fixture
async def rig(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Rig]:
    async with tables_rig(redis, monkeypatch) as opened:
        yield opened


async def test_a5_a_field_is_read_once_and_then_only_what_has_changed(rig: Rig):
    for number in range(120):
        await rig.put(f"o{number:03}", "Running")
    assert (await rig.values() or {})["o007"] == "Running"
    assert sum(rig.reads) == 120

    rig.reads.clear()
    assert len(await rig.values() or {}) == 120
    assert rig.reads == []

    await rig.put("o007", "Failed")
    await rig.put("new", "Pending")
    await rig.delete("o100")
    values = await rig.values() or {}
    assert (values["o007"], values["new"], "o100" in values) == ("Failed", "Pending", False)
    assert rig.reads == [3]


async def test_a8_reads_are_bounded_in_bytes(rig: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fleetbus_query_api.fields.tables.CHUNK_BYTES", 500)
    for number in range(30):
        await rig.put(f"o{number:02}", "x" * 100)
    assert len(await rig.values() or {}) == 30
    assert max(rig.reads) <= 3


async def test_questions_at_the_same_time_read_a_field_once(rig: Rig):
    for number in range(100):
        await rig.put(f"o{number}", "Running")
    answers = await asyncio.gather(*(rig.values() for _ in range(5)), rig.values(NODE))
    assert all(len(answer or {}) == 100 for answer in answers)
    assert sum(rig.reads) == 200


async def test_who_goes_away_cancels_what_only_they_wanted(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    for number in range(200):
        await rig.put(f"o{number:03}", "Running")
    entered, gate = asyncio.Event(), asyncio.Event()
    read = rig.reader.rows.read

    async def slow(*args: Any, **fields: Any) -> Any:
        entered.set()
        await gate.wait()
        return await read(*args, **fields)

    monkeypatch.setattr(rig.reader.rows, "read", slow)
    first, second = asyncio.create_task(rig.values()), asyncio.create_task(rig.values())
    alone = asyncio.create_task(rig.values(NODE))
    await entered.wait()
    await eventually(lambda: len(rig.tables._reads) == 2)  # pyright: ignore[reportPrivateUsage]
    alone.cancel()
    first.cancel()
    await asyncio.wait([first, alone])
    gate.set()
    assert len(await second or {}) == 200
    assert sum(rig.reads) == 200, "nobody reads what is wanted no more"

    assert len(await rig.values(NODE) or {}) == 200, "the next one begins anew"


async def test_p13_nothing_of_a_lost_store_is_answered(rig: Rig, redis: Redis):
    await rig.put("web", "Running")
    assert await rig.values() == {"web": "Running"}
    await redis.flushall()
    await rig.snapshot.set_up()
    await rig.snapshot.writer.put_cluster("eu1", ClusterRecord(name="eu1"))
    assert await rig.values() == {}
    await rig.put("web", "Failed")
    assert await rig.values() == {"web": "Failed"}


async def test_a_dropped_cluster_leaves_nothing(rig: Rig):
    await rig.put("web", "Running")
    assert await rig.values() == {"web": "Running"}
    await rig.snapshot.writer.removal.drop_cluster("eu1")
    await rig.snapshot.writer.put_cluster("eu1", ClusterRecord(name="eu1"))
    assert await rig.values() == {}
    assert rig.tables.size < 5_000


async def test_a5_a_feed_that_was_cut_costs_another_read_and_no_wrong_answer(
    rig: Rig, redis: Redis
):
    await rig.put("web", "Running")
    assert await rig.values() == {"web": "Running"}
    await rig.put("web", "Failed")
    await rig.put("db", "Running")
    await redis.xtrim(SnapshotKeys().feed(0), maxlen=1, approximate=False)
    assert await rig.values() == {"db": "Running", "web": "Failed"}


async def test_a8_the_least_recently_used_column_goes(rig: Rig):
    for number in range(100):
        await rig.put(f"o{number}", f"phase {number}")
    await rig.values(PHASE)
    one_column = rig.tables.size
    rig.with_room(round(one_column * 1.5))
    await rig.values(PHASE)
    await rig.values(NODE)
    assert rig.tables.size <= one_column * 1.5
    assert rig.tables.has([PODS], [NODE])
    assert not rig.tables.has([PODS], [PHASE])
    assert len(await rig.values(PHASE) or {}) == 100


async def test_a8_a_column_in_use_stays_and_another_one_has_to_wait(rig: Rig):
    for number in range(100):
        await rig.put(f"o{number}", f"phase {number}")
    await rig.values(PHASE)
    rig.with_room(round(rig.tables.size * 1.5))
    async with rig.tables.open([PODS], [PHASE]) as tables:
        assert await rig.values(NODE) is None
        assert tables[PODS].has([PHASE])
        assert tables[PODS].columns[PHASE].get(0) == "phase 0"


async def test_a8_fields_that_nothing_has_take_room_as_well(rig: Rig):
    rig.with_room(20_000)
    for number in range(40):
        assert await rig.values(FieldPath.parse(f"spec.f{number}")) == {}
    assert rig.tables.size <= 20_000
    assert not rig.tables.has([PODS], [FieldPath.parse("spec.f0")])


async def test_a8_a_field_without_room_is_not_read_again_and_again(rig: Rig):
    for number in range(100):
        await rig.put(f"o{number}", f"phase {number}")
    rig.with_room(15_000)  # for the keys, but not for the values
    assert await rig.values() is None
    assert rig.tables.size <= 15_000
    read = sum(rig.reads)
    assert read > 0
    assert await rig.values() is None
    assert sum(rig.reads) == read


async def test_a5_what_changes_while_a_field_is_read_is_in_the_next_answer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    for number in range(120):
        await rig.put(f"o{number:03}", "Running")
    read = rig.reader.rows.read

    async def changing(*args: Any, **fields: Any) -> Any:
        table = await read(*args, **fields)
        if len(rig.reads) < 3:  # after some were read, before they are taken
            await rig.put("o001", f"phase {len(rig.reads)}")
            await rig.put("zzz", "Pending")
            await rig.delete("o002")
        return table

    monkeypatch.setattr(rig.reader.rows, "read", changing)
    await rig.values()
    values = await rig.values() or {}
    assert (values["o001"], values["zzz"], "o002" in values) == ("phase 2", "Pending", False)
    assert len(values) == 120


async def test_a5_a_table_that_is_lost_while_it_is_read_is_read_again(
    rig: Rig, redis: Redis, monkeypatch: pytest.MonkeyPatch
):
    await rig.put("web", "Running")
    read = rig.reader.rows.read

    async def losing(*args: Any, **fields: Any) -> Any:
        table = await read(*args, **fields)
        if len(rig.reads) == 1:
            await rig.put("web", "Failed")
            await rig.put("db", "Running")
            await redis.xtrim(SnapshotKeys().feed(0), maxlen=1, approximate=False)
            await rig.tables.catch_up()
        return table

    monkeypatch.setattr(rig.reader.rows, "read", losing)
    assert await rig.values() == {"db": "Running", "web": "Failed"}
