"""The order guard of the snapshot, rule by rule (P1 to P4, P13, B11, W5, W6, W16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.errors import StoreFull
from fleetbus.kube.selectors import LabelSelector
from fleetbus.ownership import OWNER_UID_LABEL
from fleetbus.snapshot import ClusterRecord, SnapshotWriter, StoreEmpty
from fleetbus.snapshot.offsets.checkpoint_store import Beside, CheckpointStore
from fleetbus_proto.keys import SnapshotKeys
from support.stores.snapshot import PODS, Snapshot, Source, body_of, full_store

if TYPE_CHECKING:
    from redis.asyncio import Redis

LIVE = Source()


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    return snapshot


async def test_p1_an_event_is_applied_once_and_its_bytes_are_served_as_they_came(
    snapshot: Snapshot,
):
    odd = b'{ "metadata":{"name":"web"},  "spec": {"x": 1.50, "y": "\xc3\xa9\\u0000"} }'
    event = LIVE.added("web", 5, body=odd)
    assert await snapshot.apply_one(event) == "applied"
    assert await snapshot.apply_one(event) == "same"
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert entry.body == odd
    assert (entry.uid, entry.resource_version, entry.degraded) == ("uid-web", "5", "")
    assert entry.counter == await snapshot.reader.version()


async def test_p1_events_of_a_cluster_outside_the_fleet_are_refused_and_leave_no_row(
    snapshot: Snapshot,
):
    before = await snapshot.all_keys()
    stranger = Source(cluster="mars")
    assert await snapshot.apply_one(stranger.added("web", 5)) == "refused"
    assert (await snapshot.writer.end_epoch(stranger.end(0))).outcome == "refused"
    assert await snapshot.all_keys() == before
    await snapshot.writer.put_cluster("mars", ClusterRecord(name="mars"))
    assert await snapshot.apply_one(stranger.added("web", 5)) == "applied"


async def test_p1_one_batch_holds_many_clusters_and_repeated_keys_in_their_order(
    snapshot: Snapshot,
):
    us, mars = Source(cluster="us1"), Source(cluster="mars")
    outcomes = await snapshot.apply(
        LIVE.added("web", 5),
        mars.added("web", 5),
        us.added("web", 7),
        LIVE.modified("web", 6),
        LIVE.modified("web", 5),
        LIVE.deleted("web", 8),
        LIVE.added("web", 9, uid="second"),
        us.modified("web", 7),
    )
    assert outcomes == [
        "applied", "refused", "applied", "applied", "stale", "applied", "applied", "same",
    ]  # fmt: skip
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert (entry.uid, entry.resource_version) == ("second", "9")
    assert await snapshot.version("web", cluster="us1") == "7"


async def test_p1_a_batch_over_500_is_refused_whole_and_an_empty_one_is_nothing(
    snapshot: Snapshot,
):
    with pytest.raises(ValueError, match="501"):
        await snapshot.writer.apply([LIVE.added("web", 5)] * 501)
    assert await snapshot.apply() == []
    assert len(await snapshot.apply(*(LIVE.added(f"w{i}", i + 1) for i in range(500)))) == 500


async def test_p1_names_with_any_byte_keep_their_own_rows(snapshot: Snapshot):
    names = ["a b", "*", "x\x1fy", "x\x1ey", "x\ny", "ü|ü", "{fleet:1}", "a:b"]
    await snapshot.apply(*(LIVE.added(name, i + 1, uid="u") for i, name in enumerate(names)))
    assert sorted(await snapshot.names()) == sorted(names)
    assert [await snapshot.version(name) for name in names] == [
        str(i + 1) for i in range(len(names))
    ]


@pytest.mark.parametrize("base", [0, 2**53 - 1, 2**53, 2**63, 2**100])
async def test_p2_versions_are_ordered_as_numbers_at_any_size(snapshot: Snapshot, base: int):
    assert await snapshot.apply_one(LIVE.added("web", base + 2)) == "applied"
    assert await snapshot.apply_one(LIVE.modified("web", base + 1)) == "stale"
    assert await snapshot.apply_one(LIVE.modified("web", base + 2)) == "same"
    assert await snapshot.apply_one(LIVE.modified("web", base + 3)) == "applied"
    assert await snapshot.apply_one(LIVE.modified("web", 9 * (base + 3))) == "applied"
    assert await snapshot.apply_one(LIVE.modified("web", 10 * (base + 3))) == "applied"
    assert await snapshot.version("web") == str(10 * (base + 3))


@pytest.mark.parametrize("version", ["", "07", "1a", "-1", "1.0", "9" * 40])
async def test_p2_a_version_that_cannot_be_ordered_is_refused(snapshot: Snapshot, version: str):
    assert await snapshot.apply_one(LIVE.added("web", version)) == "refused"
    assert await snapshot.version("web") == ""


async def test_p2_a_newer_incarnation_wins_with_a_lower_version_and_silences_the_older(
    snapshot: Snapshot,
):
    await snapshot.apply(LIVE.added("web", 900), LIVE.added("db", 901))
    restored = Source(incarnation=2)
    assert await snapshot.apply_one(restored.modified("web", 40)) == "applied"
    assert await snapshot.apply_one(LIVE.modified("web", 999)) == "stale"
    assert await snapshot.apply_one(LIVE.modified("db", 999)) == "stale"
    assert await snapshot.version("web") == "40"
    assert await snapshot.version("db") == "901"


@pytest.mark.parametrize("number", [2**53, 1_900_000_000_000])
async def test_p2_incarnations_are_ordered_as_numbers_at_any_size(snapshot: Snapshot, number: int):
    newer, older = Source(incarnation=number + 1), Source(incarnation=number)
    assert await snapshot.apply_one(newer.added("web", 5)) == "applied"
    assert await snapshot.apply_one(older.modified("web", 6)) == "stale"


async def test_p2_a_newer_incarnation_resets_floor_and_completed_rank(snapshot: Snapshot):
    await snapshot.run_epoch(Source(rank=(1000, 1)), web=900)
    restored = Source(incarnation=2, rank=(50, 2))
    assert await snapshot.apply_one(restored.added("new", 40)) == "applied"
    state = await snapshot.run_epoch(restored, new=40)
    assert state.complete
    assert await snapshot.sweep(state.epoch) == ["web"]


async def test_p3_a_late_change_never_brings_back_what_was_deleted(snapshot: Snapshot):
    await snapshot.apply(LIVE.added("web", 5), LIVE.deleted("web", 9))
    assert await snapshot.apply_one(LIVE.modified("web", 8)) == "stale"
    assert await snapshot.apply_one(LIVE.added("web", 9)) == "same"
    assert await snapshot.version("web") == ""
    assert await snapshot.apply_one(LIVE.added("web", 10, uid="again")) == "applied"
    assert await snapshot.version("web") == "10"
    assert await snapshot.reader.get_deleted("eu1", PODS, "prod", "web") is None


async def test_p2_a_list_that_is_later_than_a_deletion_brings_back_what_it_holds(
    snapshot: Snapshot,
):
    """A sweep after two broken lists is mended by the next sound one."""
    await snapshot.run_epoch(Source(rank=(10, 1)), web=5)
    swept = Source(rank=(20, 2))
    await snapshot.apply(swept.deleted("web", 20))
    sound = Source(rank=(30, 3))
    assert await snapshot.apply_one(sound.listed("web", 5)) == "applied"
    assert await snapshot.version("web") == "5"
    # The deletion may come again, from the bus or a controller that is behind.
    assert await snapshot.apply_one(swept.deleted("web", 20)) == "stale"
    assert await snapshot.version("web") == "5"
    assert await snapshot.apply_one(sound.deleted("web", 31)) == "applied"
    assert await snapshot.apply_one(sound.listed("web", 5)) == "stale"
    assert await snapshot.version("web") == ""


async def test_p3_a_delete_of_an_unknown_key_leaves_a_tombstone(snapshot: Snapshot):
    assert await snapshot.apply_one(LIVE.deleted("web", 9, body=body_of("web", 9))) == "applied"
    assert await snapshot.apply_one(LIVE.added("web", 5)) == "stale"
    last = await snapshot.reader.get_deleted("eu1", PODS, "prod", "web")
    assert last is not None
    assert (last.uid, last.resource_version, last.body) == ("uid-web", "9", body_of("web", 9))
    assert await snapshot.names() == []


async def test_p3_a_delete_without_a_body_keeps_the_last_one(snapshot: Snapshot):
    await snapshot.apply(LIVE.added("web", 5), LIVE.deleted("web", 9, body=None))
    last = await snapshot.reader.get_deleted("eu1", PODS, "prod", "web")
    assert last is not None
    assert (last.resource_version, last.body) == ("9", body_of("web", 5))
    await snapshot.apply(LIVE.deleted("web", 12, body=None))
    again = await snapshot.reader.get_deleted("eu1", PODS, "prod", "web")
    assert again is not None
    assert (again.resource_version, again.body) == ("12", body_of("web", 5))


async def test_w6_leaving_one_selection_does_not_hide_the_row_from_a_wider_scope(
    snapshot: Snapshot,
):
    narrow, wide = Source(scope="narrow"), Source(scope="wide")
    await snapshot.apply(narrow.added("web", 5))
    assert await snapshot.apply_one(narrow.deleted("web", 8, left_selection=True)) == "applied"
    assert await snapshot.version("web") == ""
    assert await snapshot.apply_one(wide.modified("web", 8)) == "applied"
    assert await snapshot.apply_one(narrow.deleted("web", 8, left_selection=True)) == "same"
    assert await snapshot.version("web") == "8"


async def test_w5_a_newer_list_replaces_a_body_of_equal_version_by_a_stricter_transform(
    snapshot: Snapshot,
):
    loose, strict = body_of("web", 5, note="secret"), body_of("web", 5)
    await snapshot.apply(Source(rank=(10, 1)).listed("web", 5, body=loose))
    stricter = Source(rank=(10, 2)).listed("web", 5, body=strict)
    assert await snapshot.apply_one(stricter) == "applied"
    assert await snapshot.apply_one(stricter) == "same"
    assert await snapshot.apply_one(Source(rank=(10, 1)).listed("web", 5, body=loose)) == "same"
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert entry.body == strict


@pytest.mark.parametrize("reason", ["oversized", "unreadable", ""])
async def test_b11_an_object_without_a_body_is_held_and_marked(snapshot: Snapshot, reason: str):
    await snapshot.apply(LIVE.added("web", 5))
    assert await snapshot.apply_one(LIVE.modified("web", 6, body=None, degraded=reason)) == (
        "applied"
    )
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert (entry.body, entry.degraded) == (b"", reason or "absent")
    assert await snapshot.names() == ["web"]
    await snapshot.apply(LIVE.modified("web", 7))
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert (entry.body, entry.degraded) == (body_of("web", 7), "")


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[]", b"\xff\xfe", b'{"metadata":{"labels":[1]}}', b"[" * 100_000, b'{"metadata":'],
)
async def test_w16_a_body_whose_metadata_cannot_be_read_is_stored_and_marked(
    snapshot: Snapshot, body: bytes
):
    assert await snapshot.apply_one(LIVE.added("web", 5, body=body)) == "applied"
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert (entry.body, entry.degraded) == (body, "unreadable")


async def test_w16_control_bytes_in_labels_do_not_break_the_guard(snapshot: Snapshot):
    metadata = {"labels": {"a": "x\x1fy\x1ez", "b\x1f": "c", "good": "yes"}}
    await snapshot.apply(LIVE.added("web", 5, metadata=metadata))
    assert await snapshot.names(labels=LabelSelector.parse("good=yes")) == ["web"]
    assert await snapshot.apply_one(LIVE.added("bad", 5, uid="x\x1fy")) == "refused"
    assert await snapshot.apply_one(LIVE.modified("web", 6, metadata=metadata)) == "applied"


async def test_indexes_follow_labels_and_owners_and_leave_nothing_behind(snapshot: Snapshot):
    first = {
        "labels": {"app": "web", "tier": "front", OWNER_UID_LABEL: "mcr-1"},
        "ownerReferences": [{"uid": "rs-1", "kind": "ReplicaSet"}],
    }
    second = {"labels": {"app": "web"}, "ownerReferences": [{"uid": "rs-2"}]}
    await snapshot.apply(LIVE.added("web", 5, metadata=first))
    assert await snapshot.names(owner="mcr-1") == ["web"]
    assert await snapshot.names(owner="rs-1") == ["web"]
    await snapshot.apply(LIVE.modified("web", 6, metadata=second))
    assert await snapshot.names(owner="mcr-1") == await snapshot.names(owner="rs-1") == []
    assert await snapshot.names(owner="rs-2") == ["web"]
    assert await snapshot.names(labels=LabelSelector.parse("app=web")) == ["web"]
    assert await snapshot.names(labels=LabelSelector.parse("tier=front")) == []
    await snapshot.apply(LIVE.deleted("web", 7))
    stored_keys = await snapshot.all_keys()
    assert not [key for key in stored_keys if ":labels:" in key or ":owners:" in key]


async def test_a5_each_visible_change_bumps_the_counter_and_is_reported_in_the_feed(
    snapshot: Snapshot,
):
    start = await snapshot.reader.version()
    await snapshot.apply(
        LIVE.added("web", 5),
        LIVE.modified("web", 5),
        LIVE.modified("web", 6),
        LIVE.deleted("web", 9),
        LIVE.deleted("web", 11),
        LIVE.added("web", 12),
    )
    assert await snapshot.feed() == [
        (f"{start + 1}-0", "added", "prod/web"),
        (f"{start + 2}-0", "modified", "prod/web"),
        (f"{start + 3}-0", "deleted", "prod/web"),
        (f"{start + 5}-0", "added", "prod/web"),
    ]
    entry = await snapshot.reader.get("eu1", PODS, "prod", "web")
    assert entry is not None
    assert entry.counter == await snapshot.reader.version() == start + 5


async def test_a5_the_feed_is_bounded(redis: Redis):
    snapshot = Snapshot(redis)
    snapshot.writer = SnapshotWriter(redis, SnapshotKeys(), feed_length=100)
    await snapshot.set_up("eu1")
    for version in range(1, 5):
        await snapshot.apply(*(LIVE.added(f"w{i}", version) for i in range(500)))
    assert await redis.xlen(SnapshotKeys().feed(0)) < 100 + 200  # Redis trims whole nodes of 100


async def test_p13_nothing_is_written_into_a_store_without_a_generation(redis: Redis):
    snapshot = Snapshot(redis)
    with pytest.raises(StoreEmpty):
        await snapshot.apply(LIVE.added("web", 5))
    with pytest.raises(StoreEmpty):
        await snapshot.writer.end_epoch(LIVE.end(0))
    assert await snapshot.all_keys() == set()


async def test_p13_a_flushed_store_gets_a_new_generation_and_a_feed_that_is_ahead(
    redis: Redis, snapshot: Snapshot
):
    generation, feed = await snapshot.reader.generation(), await snapshot.feed_generation()
    assert await snapshot.writer.ensure_generation() == set()
    assert await snapshot.reader.generation() == generation
    await snapshot.apply(LIVE.added("web", 5))
    before = await snapshot.reader.version()
    await redis.flushall()
    assert await snapshot.reader.generation() is None
    assert await snapshot.writer.ensure_generation() == {0}
    assert await snapshot.reader.generation() not in {generation, None}
    assert await snapshot.feed_generation() not in {feed, None}
    assert await snapshot.reader.version() > before


async def test_p13_renewing_the_feed_voids_every_position_and_keeps_the_rows(
    redis: Redis, snapshot: Snapshot
):
    beside = Beside.shard_of_snapshot(snapshot.keys, 0, PROJECTOR)
    checkpoints = CheckpointStore(redis, snapshot.keys, beside)
    await checkpoints.read(PROJECTOR)
    await snapshot.apply(LIVE.added("web", 5))
    before = await snapshot.reader.version()
    generation, feed = await snapshot.reader.generation(), await snapshot.feed_generation()
    await checkpoints.read(PROJECTOR)
    assert await snapshot.feed_generation() == feed
    await redis.hset(snapshot.keys.store(0), "run", "another server")
    await checkpoints.read(PROJECTOR)
    assert await snapshot.feed_generation() != feed
    assert await snapshot.reader.generation() == generation
    assert await snapshot.reader.version() > before
    assert await snapshot.feed() == []
    assert await snapshot.version("web") == "5"
    assert await snapshot.apply_one(LIVE.modified("web", 6)) == "applied"


async def test_p16_scripts_load_themselves_again_after_the_server_forgot_them(
    redis: Redis, snapshot: Snapshot
):
    await snapshot.apply(LIVE.added("web", 5))
    await redis.script_flush()
    assert await snapshot.apply_one(LIVE.modified("web", 6)) == "applied"


async def test_p16_every_key_of_the_snapshot_carries_one_hash_tag(snapshot: Snapshot):
    metadata = {"labels": {"a": "b"}, "ownerReferences": [{"uid": "rs"}]}
    await snapshot.run_epoch(Source(rank=(10, 1)), web=5)
    await snapshot.apply(LIVE.added("x", 50, metadata=metadata), LIVE.deleted("web", 51))
    assert all("{fleet:0}" in key for key in await snapshot.all_keys())


async def test_p9_a_full_store_takes_what_needs_no_room_and_refuses_the_rest(
    redis: Redis, snapshot: Snapshot
):
    await snapshot.run_epoch(Source(rank=(10, 1)), web=5, db=6)
    grown, again = body_of("web", 30, color="x" * 100), Source(rank=(40, 2))
    async with full_store(redis):
        assert await snapshot.writer.is_full(0)
        with pytest.raises(StoreFull):
            await snapshot.apply(LIVE.deleted("db", 20), LIVE.added("new", 21))
        with pytest.raises(StoreFull):
            await snapshot.apply(LIVE.modified("web", 30, body=grown))
        with pytest.raises(StoreFull):
            await snapshot.apply(LIVE.deleted("unknown", 22))
        assert (await snapshot.run_epoch(again, web=5)).complete
    assert not await snapshot.writer.is_full(0)
    assert await snapshot.names() == ["web"]
    assert await snapshot.version("web") == "5"
    tombstones = [name async for _, name in snapshot.reader.deleted_keys("eu1", PODS)]
    assert tombstones == ["db"]
    await snapshot.apply(LIVE.added("new", 41), LIVE.modified("web", 42, body=grown))
    assert await snapshot.names() == ["new", "web"]
