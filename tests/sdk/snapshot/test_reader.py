"""Lists, selectors, paging, records and freshness (rules A4, A5, P12 to P14, P16)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.errors import StoreError
from fleetbus.kube.selectors import LabelSelector
from fleetbus.snapshot import (
    ClusterRecord,
    Definition,
    ExpiredToken,
    InvalidToken,
    ListQuery,
    ResourceRecord,
    ResourceState,
    StoreEmpty,
    connect,
)
from fleetbus.snapshot.reads.paging import MAX_TOKEN
from fleetbus.store.connection import check_server
from support.rows import each_row
from support.stores.snapshot import PODS, Snapshot, Source

if TYPE_CHECKING:
    from redis.asyncio import Redis

CLUSTERS = ["ap1", "eu1", "us1"]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    """Three clusters with twelve objects each, in three namespaces."""
    snapshot = Snapshot(redis)
    await snapshot.set_up(*CLUSTERS)
    for cluster in CLUSTERS:
        source = Source(cluster=cluster)
        await snapshot.apply(*(_event(source, i) for i in range(12)))
    return snapshot


def _event(source: Source, i: int) -> Any:
    labels = {"parity": "even" if i % 2 == 0 else "odd", "n": str(i)}
    if i % 3 == 0:
        labels["third"] = ""
    metadata = {"labels": labels, "ownerReferences": [{"uid": f"owner-{i % 4}"}]}
    namespace = ("prod", "prod-eu", "test")[i % 3]
    return source.added(f"w{i:02}", i + 1, namespace=namespace, metadata=metadata)


async def all_pages(snapshot: Snapshot, **query: Any) -> list[tuple[str, str, str]]:
    """Every entry over all pages; the counts must agree on the way."""
    token, expected = "", None
    keys: list[tuple[str, str, str]] = []
    query_fields: dict[str, Any] = {"resource": PODS, "clusters": CLUSTERS, **query}
    while True:
        page = await snapshot.reader.list(ListQuery(**query_fields, continue_token=token))
        keys += [(e.cluster, e.namespace, e.name) for e in page.entries]
        if page.remaining is not None:
            expected = expected if expected is not None else len(keys) + page.remaining
            assert len(keys) + page.remaining == expected
        token = page.continue_token
        if not token:
            assert not page.remaining
            return keys


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"namespace": "prod"},
        {"labels": LabelSelector.parse("parity=even")},
        {"labels": LabelSelector.parse("parity!=even,n notin (1,3)")},
        {"owner": "owner-2"},
        {"name": "w04"},
    ],
    ids=["all", "namespace", "equality", "scan", "owner", "name"],
)
async def test_pages_of_any_size_give_each_object_once_in_order(
    snapshot: Snapshot, query: dict[str, Any]
):
    all_keys = await all_pages(snapshot, **query)
    assert all_keys
    keys = [(cluster, f"{namespace}/{name}".encode()) for cluster, namespace, name in all_keys]
    assert keys == sorted(keys)
    for limit in (1, 5, 12, 35, 36, 100, None):
        for count in (True, False):
            pages = await all_pages(snapshot, **query, limit=limit, count=count)
            assert pages == all_keys, (limit, count)


async def test_the_pages_of_a_scan_read_each_key_about_once(redis: Redis):
    snapshot, labels = Snapshot(redis), LabelSelector.parse("third")
    await snapshot.set_up("eu1")
    source = Source(cluster="eu1")
    for start in range(0, 3_500, 500):
        await snapshot.apply(*(_event(source, 3 * n) for n in range(start, start + 500)))
    await redis.config_resetstat()
    keys = await all_pages(snapshot, clusters=["eu1"], labels=labels, limit=500, count=False)
    assert len(keys) == 3_500
    stats: Any = await redis.info("commandstats")
    assert stats["cmdstat_zrangebylex"]["calls"] <= 7 + 1, "one chunk for each page"


async def test_changes_between_pages_neither_repeat_nor_hide_the_others(snapshot: Snapshot):
    query = ListQuery(resource=PODS, clusters=["eu1"], namespace="prod", limit=2)
    first = await snapshot.reader.list(query)
    assert [e.name for e in first.entries] == ["w00", "w03"]
    await snapshot.apply(
        Source().deleted("w03", 900), Source().added("w01a", 901), Source().added("w07", 902)
    )
    names = await snapshot.names(namespace="prod", continue_token=first.continue_token)
    assert names == ["w06", "w07", "w09"]


async def test_label_selectors_list_what_matches(snapshot: Snapshot, subtests: pytest.Subtests):
    for selector, expected in [
        ("parity=even", [0, 2, 4, 6, 8, 10]),
        ("parity==even,third", [0, 6]),
        ("parity!=even", [1, 3, 5, 7, 9, 11]),
        ("third", [0, 3, 6, 9]),
        ("third=", [0, 3, 6, 9]),
        ("!third,parity=odd", [1, 5, 7, 11]),
        ("n in (1, 2,20)", [1, 2]),
        ("n notin (1,2),parity=even,!third", [4, 8, 10]),
        ("absent!=x,n=4", [4]),
        ("absent=x", []),
        ("parity=even,parity=odd", []),
    ]:
        with subtests.test(selector=selector, expected=expected):
            names = await snapshot.names(labels=LabelSelector.parse(selector))
            assert sorted(names) == [f"w{i:02}" for i in expected]


async def test_filters_combine(snapshot: Snapshot):
    odd = LabelSelector.parse("parity=odd")
    assert await snapshot.names(owner="owner-1", labels=odd, namespace="prod") == ["w09"]
    assert await snapshot.names(name="w09", namespace="prod") == ["w09"]
    assert await snapshot.names(name="w09", namespace="test") == []
    assert await snapshot.names(name="w09") == ["w09"]
    assert await snapshot.names(clusters=["eu1", "mars"], name="w00", namespace="prod") == ["w00"]
    assert await snapshot.names(resource="core/services") == []


async def test_a_namespace_whose_name_starts_another_is_kept_apart(snapshot: Snapshot):
    assert await snapshot.names(namespace="prod") == ["w00", "w03", "w06", "w09"]
    assert [key async for key in snapshot.reader.keys("eu1", PODS, "prod")] == [
        ("prod", name) for name in ("w00", "w03", "w06", "w09")
    ]


async def test_cluster_scoped_objects_have_the_empty_namespace(snapshot: Snapshot):
    nodes = Source(resource="nodes")
    await snapshot.apply(nodes.added("n1", 5, namespace=""))
    assert await snapshot.names(resource="core/nodes") == ["n1"]
    assert await snapshot.names(resource="core/nodes", namespace="") == ["n1"]
    assert await snapshot.reader.get("eu1", "core/nodes", "", "n1") is not None


async def test_a5_every_page_has_the_version_of_the_first_one(snapshot: Snapshot):
    query = ListQuery(resource=PODS, clusters=CLUSTERS, limit=10)
    first = page = await snapshot.reader.list(query)
    changed = Source(cluster="us1").added("added-meanwhile", 900, namespace="zzz")
    await snapshot.apply(changed)
    while page.continue_token:
        page = await snapshot.reader.list(replace(query, continue_token=page.continue_token))
        assert (page.counter, page.generation) == (first.counter, first.generation)
    last = page.entries[-1]
    assert last.name == "added-meanwhile"
    assert last.counter > first.counter, "a watch from the list's version has it again"
    assert first.token_after(first.entries[-1]) == first.continue_token


async def test_a_garbage_continue_token_is_refused(snapshot: Snapshot, subtests: pytest.Subtests):
    for token in ["x", "!!!", "AAAA", "é", "a" * 500, "k6JwMQ=="]:
        with subtests.test(token=token), pytest.raises(InvalidToken, match="continue token"):
            await snapshot.names(continue_token=token)


async def test_a8_a_token_that_is_longer_than_any_of_ours_is_not_decoded(snapshot: Snapshot):
    query = ListQuery(resource=PODS, clusters=["eu1"], limit=2)
    token = (await snapshot.reader.list(query)).continue_token
    assert len(token) < MAX_TOKEN / 2
    with pytest.raises(InvalidToken, match="continue token"):
        await snapshot.names(continue_token=token + "A" * (4 * MAX_TOKEN))


@pytest.mark.parametrize(("ahead", "error"), [(1, ExpiredToken), (-(10**18), InvalidToken)])
async def test_a5_a_token_whose_version_was_not_issued_is_refused(
    snapshot: Snapshot, ahead: int, error: type[Exception]
):
    page = await snapshot.reader.list(ListQuery(resource=PODS, clusters=["eu1"], limit=2))
    forged = replace(page, counter=page.counter + ahead)
    with pytest.raises(error, match="continue token"):
        await snapshot.names(continue_token=forged.token_after(page.entries[-1]))


async def test_p13_a_token_of_a_lost_store_is_expired(redis: Redis, snapshot: Snapshot):
    query = ListQuery(resource=PODS, clusters=["eu1"], limit=2)
    token = (await snapshot.reader.list(query)).continue_token
    await redis.flushall()
    with pytest.raises(StoreEmpty):
        await snapshot.names(continue_token=token)
    await snapshot.set_up("eu1")
    with pytest.raises(ExpiredToken):
        await snapshot.names(continue_token=token)


async def test_a5_the_counter_of_a_page_is_read_before_its_rows(snapshot: Snapshot):
    page = await snapshot.reader.list(ListQuery(resource=PODS, clusters=["eu1"]))
    assert page.counter == await snapshot.reader.version()
    assert max(entry.counter for entry in page.entries) <= page.counter


async def test_p12_keys_and_tombstones_are_walked_in_order(snapshot: Snapshot):
    await snapshot.apply(Source().deleted("w00", 900), Source().deleted("never-seen", 901))
    live = [key async for key in snapshot.reader.keys("eu1", PODS)]
    assert len(live) == await snapshot.reader.count("eu1", PODS) == 11
    assert live == sorted(live, key="/".join)
    assert [key async for key in snapshot.reader.deleted_keys("eu1", PODS)] == [
        ("prod", "never-seen"),
        ("prod", "w00"),
    ]


async def test_more_objects_than_one_chunk_are_listed_and_walked(snapshot: Snapshot):
    big = Source(resource="services")
    for at in range(0, 2_500, 500):
        await snapshot.apply(*(big.added(f"s{i:04}", i + 1) for i in range(at, at + 500)))
    expected = [f"s{i:04}" for i in range(2_500)]
    assert await snapshot.names(resource="core/services") == expected
    assert [name async for _, name in snapshot.reader.keys("eu1", "core/services")] == expected


async def test_the_fleet_is_kept_by_name(snapshot: Snapshot):
    record = ClusterRecord(name="eu1", labels={"region": "eu"}, hub=True, incarnation=2**52)
    await snapshot.writer.put_cluster("eu1", record)
    assert [r.name for r in await snapshot.reader.clusters()] == CLUSTERS
    assert await snapshot.reader.cluster("eu1") == record
    await snapshot.forget_cluster("eu1")
    assert await snapshot.reader.cluster("eu1") is None


def _time(age: float | None) -> str:
    return "" if age is None else (NOW - timedelta(seconds=age)).isoformat()


def _record(state: str, reason: str = "") -> ResourceRecord:
    return ResourceRecord(
        group="core",
        version="v1",
        plural="pods",
        state=ResourceState(state),
        last_received=_time(900),  # a quiet resource
        reason=reason,
    )


@pytest.mark.parametrize(
    ("state", "age", "complete"),
    [
        ("synced", 3, True),
        ("synced", 30, True),
        ("synced", 31, False),
        ("synced", -30, True),
        ("synced", None, False),
        ("listing", 3, False),
        ("stale", 3, False),
        ("degraded", 3, False),
        ("unknown", 3, False),
    ],
)
async def test_a4_only_what_is_synced_and_whose_server_answers_is_complete(
    snapshot: Snapshot, state: str, age: float | None, complete: bool
):
    cluster = ClusterRecord(
        name="eu1", connected=True, last_answer=_time(age), reported_at=_time(1)
    )
    await snapshot.writer.put_cluster("eu1", cluster)
    await snapshot.writer.put_resource_state("eu1", _record(state))
    fresh = (await snapshot.reader.freshness(["eu1"], PODS, now=NOW))["eu1"]
    assert fresh.is_complete is complete
    assert bool(fresh.reason) is not complete
    assert fresh.age == (None if age is None else timedelta(seconds=max(age, 0)))


@pytest.mark.parametrize(
    ("reported", "connected", "reason"),
    [
        (1, True, "its API server has not answered for 40 s"),
        (50, True, "its watcher has been silent for 50 s"),
        (1, False, "no answer"),
    ],
)
async def test_a4_why_it_is_not_complete_says_who_is_silent(
    snapshot: Snapshot, reported: float, connected: bool, reason: str
):
    cluster = ClusterRecord(
        name="eu1",
        connected=connected,
        message="" if connected else "no answer",
        last_answer=_time(40),
        reported_at=_time(reported),
    )
    await snapshot.writer.put_cluster("eu1", cluster)
    await snapshot.writer.put_resource_state("eu1", _record("synced"))
    fresh = (await snapshot.reader.freshness(["eu1"], PODS, now=NOW))["eu1"]
    assert (fresh.is_complete, fresh.reason) == (False, reason)
    assert fresh.age == timedelta(seconds=40)


async def test_p14_a_resource_nobody_reported_of_is_unknown_and_so_is_all_after_a_loss(
    redis: Redis, snapshot: Snapshot
):
    await snapshot.writer.put_resource_state("eu1", _record("synced"))
    assert [r.key for r in await snapshot.reader.resources("eu1")] == [PODS]
    fresh = await snapshot.reader.freshness(["eu1", "us1", "mars"], PODS, now=NOW)
    assert [f.state for f in fresh.values()] == ["synced", "unknown", "unknown"]
    await snapshot.forget_resource("eu1", PODS)
    assert not await snapshot.reader.resources("eu1")
    await snapshot.writer.put_resource_state("eu1", _record("synced"))
    await redis.flushall()
    fresh = await snapshot.reader.freshness(["eu1"], PODS, now=NOW)
    assert (fresh["eu1"].state, fresh["eu1"].is_complete) == ("unknown", False)


async def test_a4_an_object_comes_with_its_freshness(redis: Redis, snapshot: Snapshot):
    reader = snapshot.reader
    now = datetime.now(UTC).isoformat()
    cluster = ClusterRecord(name="eu1", connected=True, last_answer=now, reported_at=now)
    await snapshot.writer.put_cluster("eu1", cluster)
    await snapshot.writer.put_resource_state("eu1", _record("synced"))
    entry, fresh = await reader.get_with_freshness("eu1", PODS, "prod", "w00")
    assert entry == await reader.get("eu1", PODS, "prod", "w00")
    assert (entry is not None, fresh.is_complete) == (True, True)
    await snapshot.apply(Source().deleted("w00", 900))
    assert (await reader.get_with_freshness("eu1", PODS, "prod", "w00"))[0] is None
    entry, fresh = await reader.get_with_freshness("us1", PODS, "prod", "w00")
    assert (entry is not None, fresh.state) == (True, "unknown")
    entry, fresh = await reader.get_with_freshness("mars", PODS, "prod", "w00")
    assert (entry, fresh.state) == (None, "unknown")
    checkpoint = snapshot.keys.offset_checkpoint(0, PROJECTOR)
    await cast("Any", redis.hset(checkpoint, "run", "another server"))
    _, fresh = await reader.get_with_freshness("eu1", PODS, "prod", "w03")
    assert not fresh.is_complete, "the store has lost writes (rule P11)"


async def test_types_and_records_of_many_clusters_are_read_together(redis: Redis):
    snapshot, names = Snapshot(redis, shards=3), [f"c{number:02}" for number in range(90)]
    await snapshot.set_up(*names)
    definition_of_c07 = Definition(short_names=["po"])
    for name in names:
        definition = definition_of_c07 if name == "c07" else None
        record = msgspec.structs.replace(_record("synced", reason=name), definition=definition)
        await snapshot.writer.put_resource_state(name, record)
    types = {
        name: types_of_cluster
        async for name, types_of_cluster in snapshot.reader.resource_types(names)
    }
    assert sorted(types) == names
    assert len({id(by_key[PODS]) for by_key in types.values()}) == 2, "all but one share theirs"
    assert [name for name in names if types[name][PODS].definition == definition_of_c07] == ["c07"]
    records = {
        name: of_cluster async for name, of_cluster in snapshot.reader.resource_records(names)
    }
    assert [[each_record.reason for each_record in records[name]] for name in names] == [
        [name] for name in names
    ]


async def test_p16_connect_refuses_a_server_that_may_evict(redis: Redis, valkey_url: str):
    await redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(StoreError, match="allkeys-lru"):
            await connect(valkey_url)
    finally:
        await redis.config_set("maxmemory-policy", "noeviction")
    client = await connect(valkey_url)
    assert await client.ping()
    await client.aclose()


@each_row(
    "info",
    [
        {"redis_version": "6.2.14", "maxmemory_policy": "noeviction"},
        {"redis_version": "7.2.4", "valkey_version": "6.0.0", "maxmemory_policy": "noeviction"},
        {"redis_version": "7.0.15"},
        {},
    ],
)
def test_p16_old_or_silent_servers_are_refused(info: dict[str, str]):
    with pytest.raises(StoreError):
        check_server(info)


async def test_an_address_without_a_server_is_a_clear_error_without_the_password():
    with pytest.raises(StoreError, match=r"redis://127\.0\.0\.1:1/0") as caught:
        await connect("redis://user:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in str(caught.value)


class CuttingProxy:
    """Passes commands on; once `cut` is set, it counts what comes and closes without an answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_cutting = False
        self.scripts_seen = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            while command := await reader.read(65_536):
                if self.is_cutting:
                    self.scripts_seen += command.count(b"EVALSHA")
                    break
                server_writer.write(command)
                writer.write(await server_reader.read(65_536))
                await writer.drain()
        finally:
            for each in (writer, server_writer):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()


async def test_q11_a_script_is_sent_once_over_a_connection_that_is_cut(valkey_url: str):
    proxy = CuttingProxy(int(valkey_url.rpartition(":")[2]))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        client = await connect(f"redis://127.0.0.1:{port}/0")
        snapshot = Snapshot(client)
        await snapshot.set_up("eu1")
        assert await snapshot.apply_one(Source().added("web", 5)) == "applied"
        proxy.is_cutting = True
        with pytest.raises(RedisConnectionError):
            await snapshot.apply_one(Source().modified("web", 6))
        assert proxy.scripts_seen == 1
        proxy.is_cutting = False
        assert await snapshot.apply_one(Source().modified("web", 6)) == "applied"
        await client.aclose()


def test_a_page_of_no_objects_is_refused():
    with pytest.raises(ValueError, match="limit must be positive"):
        ListQuery(clusters=["eu1"], resource=PODS, limit=0)
