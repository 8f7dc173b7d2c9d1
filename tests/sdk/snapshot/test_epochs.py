"""Epochs, sweeps, tombstones, scopes and leaving clusters (rules P3 to P7's ground, W7, W17)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import redis.exceptions

from fleetbus.kube.selectors import LabelSelector
from support.stores.snapshot import PODS, Snapshot, Source, body_of, full_store

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.stores("valkey", "redis")

BIG = 2**100
FIRST = Source(rank=(100, 1))
SECOND = Source(rank=(200, 2))


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    snapshot = Snapshot(redis)
    await snapshot.set_up("eu1", "us1")
    return snapshot


async def test_p4_after_an_epoch_an_unknown_key_at_or_below_the_floor_is_dropped(
    snapshot: Snapshot,
):
    await snapshot.run_epoch(FIRST, web=5)
    assert await snapshot.apply_one(FIRST.added("ghost", 99)) == "stale"
    assert await snapshot.apply_one(FIRST.deleted("ghost", 100)) == "stale"
    assert await snapshot.apply_one(FIRST.added("new", 101)) == "applied"
    assert await snapshot.apply_one(FIRST.modified("web", 50)) == "applied"
    assert await snapshot.names() == ["new", "web"]


async def test_p4_a_change_at_or_below_the_floor_never_comes_back_under_an_older_tombstone(
    snapshot: Snapshot,
):
    # Deleted at 150, created again at 160, deleted at 170 (lost): the list at 200 does not hold it,
    # and its sweep finds nothing live. The late creation must not stay for ever.
    await snapshot.run_epoch(FIRST, web=5)
    await snapshot.apply(FIRST.deleted("web", 150))
    state = await snapshot.run_epoch(SECOND)
    assert await snapshot.sweep(state.epoch) == []
    assert await snapshot.apply_one(FIRST.added("web", 160, uid="second")) == "stale"
    assert await snapshot.apply_one(FIRST.added("web", 201, uid="third")) == "applied"


@pytest.mark.parametrize("zombie", [(99, 9), (100, 0)], ids=["lower-version", "lower-id"])
async def test_p4_listed_items_and_ends_of_a_lower_rank_are_dropped(
    snapshot: Snapshot, zombie: tuple[int, int]
):
    await snapshot.run_epoch(FIRST, web=5)
    old = Source(rank=zombie)
    assert await snapshot.apply_one(old.listed("ghost", 3)) == "stale"
    state = await snapshot.writer.end_epoch(old.end(0))
    assert (state.complete, state.outcome) == (False, "stale")


async def test_p4_a_listed_item_of_the_completed_rank_is_taken_again(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    assert await snapshot.apply_one(FIRST.listed("web", 5)) == "same"


async def test_p5_the_epoch_is_complete_when_the_end_comes_last(snapshot: Snapshot):
    await snapshot.apply(FIRST.listed("web", 5), FIRST.listed("db", 6))
    state = await snapshot.writer.end_epoch(FIRST.end(2))
    assert (state.complete, state.counted, state.expected) == (True, 2, 2)
    assert state.outcome == "applied"


async def test_p5_the_epoch_is_complete_when_a_late_object_comes_last(snapshot: Snapshot):
    await snapshot.apply(FIRST.listed("web", 5))
    state = await snapshot.writer.end_epoch(FIRST.end(2))
    assert (state.complete, state.counted, state.expected) == (False, 1, 2)
    result = await snapshot.writer.apply([FIRST.listed("db", 6)])
    assert result.completed == [state.epoch]
    assert (state.epoch.kind, state.epoch.rank.id) == ("Pod", 1)


async def test_p5_a_write_that_breaks_off_completes_no_epoch(snapshot: Snapshot):
    first = await snapshot.run_epoch(FIRST, web=5, db=6)
    await snapshot.writer.sweeps.finish(first.epoch)
    await snapshot.apply(SECOND.listed("web", 5))
    await snapshot.writer.end_epoch(SECOND.end(2))
    # The script fails in the middle, as it also does in a slot that is being moved.
    broken = snapshot.keys.labels("eu1", PODS, "app=web")
    await snapshot.redis.set(broken, "of another program")
    labelled = SECOND.modified("web", 300, metadata={"labels": {"app": "web"}})
    late = [SECOND.listed("db", 6), labelled]
    with pytest.raises(redis.exceptions.ResponseError, match=r"wrong kind of value"):
        await snapshot.apply(*late)
    assert await snapshot.writer.sweeps.find_pending("eu1") == [], "db is not marked yet"
    await snapshot.redis.delete(broken)
    await snapshot.apply(*late)
    [completed] = await snapshot.writer.sweeps.find_pending("eu1")
    assert await snapshot.sweep(completed) == []


async def test_p5_a_redelivered_end_of_a_complete_epoch_is_complete_again(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    state = await snapshot.writer.end_epoch(FIRST.end(1))
    assert (state.complete, state.counted, state.outcome) == (True, 1, "same")


@pytest.mark.parametrize("lost", range(4))
async def test_p5_each_lost_listed_message_keeps_the_sweep_off(snapshot: Snapshot, lost: int):
    await snapshot.run_epoch(FIRST, **{f"w{i}": i + 1 for i in range(4)})
    events = [SECOND.listed(f"w{i}", i + 1) for i in range(4)]
    del events[lost]
    result = await snapshot.writer.apply(events)
    state = await snapshot.writer.end_epoch(SECOND.end(4))
    assert not state.complete
    assert not result.completed
    assert state.counted == 3


async def test_p5_each_key_counts_once_per_rank_whatever_the_guard_says(snapshot: Snapshot):
    await snapshot.apply(FIRST.added("web", 60), FIRST.added("db", 1), FIRST.deleted("db", 170))
    outcomes = await snapshot.apply(
        FIRST.listed("web", 5), FIRST.listed("web", 5), FIRST.listed("db", 1)
    )
    assert outcomes == ["stale", "stale", "stale"]
    state = await snapshot.writer.end_epoch(FIRST.end(2))
    assert (state.complete, state.counted) == (True, 2)
    assert await snapshot.version("web") == "60"


async def test_p5_two_running_epochs_of_two_replicas_count_apart(snapshot: Snapshot):
    await snapshot.apply(FIRST.listed("web", 5), SECOND.listed("web", 5), SECOND.listed("db", 6))
    await snapshot.apply(FIRST.listed("db", 6))
    assert (await snapshot.writer.end_epoch(SECOND.end(2))).complete
    state = await snapshot.writer.end_epoch(FIRST.end(2))
    assert (state.complete, state.outcome) == (False, "stale")


async def test_p5_scopes_and_clusters_have_ranks_and_floors_of_their_own(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    for other in (Source(scope="x", rank=(50, 1)), Source(cluster="us1", rank=(50, 1))):
        assert await snapshot.apply_one(other.added("db", 40)) == "applied"
        assert (await snapshot.run_epoch(other, db=40)).complete


async def test_p6_candidates_are_what_a_complete_list_did_not_hold(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5, db=6, cache=7)
    await snapshot.apply(FIRST.added("young", 250), FIRST.added("missed", 150))
    await snapshot.apply(FIRST.deleted("cache", 160))
    state = await snapshot.run_epoch(SECOND, web=5)
    assert state.complete
    candidates = [c async for c in snapshot.writer.sweeps.find_candidates(state.epoch, chunk=1)]
    assert sorted((c.name, c.resource_version, c.object) for c in candidates) == [
        ("db", "6", body_of("db", 6)),
        ("missed", "150", body_of("missed", 150)),
    ]
    assert {c.uid for c in candidates} == {"uid-db", "uid-missed"}


@pytest.mark.parametrize("is_left_first", [True, False])
async def test_p6_what_left_one_selection_and_stands_in_another_is_not_gone(
    snapshot: Snapshot, is_left_first: bool
):
    first, other = Source(rank=(100, 1), scope="one"), Source(rank=(100, 2), scope="other")
    await snapshot.run_epoch(first, web=5)
    await snapshot.run_epoch(other, web=5)
    events = [first.deleted("web", 150, left_selection=True), other.modified("web", 150)]
    await snapshot.apply(*(events if is_left_first else reversed(events)))
    state = await snapshot.run_epoch(Source(rank=(200, 3), scope="one"))
    assert await snapshot.sweep(state.epoch) == []
    state = await snapshot.run_epoch(Source(rank=(210, 4), scope="other"))
    assert await snapshot.sweep(state.epoch) == ["web"], "now neither has it"


async def test_p6_nothing_changes_until_the_deletions_come_back(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5, db=6)
    state = await snapshot.run_epoch(SECOND, web=5)
    assert await snapshot.sweep(state.epoch) == await snapshot.sweep(state.epoch) == ["db"]
    assert await snapshot.names() == ["db", "web"]
    gone = SECOND.deleted("db", 200, final_state_unknown=True)
    assert await snapshot.apply_one(gone) == "applied"
    assert await snapshot.apply_one(gone) == "same"
    assert await snapshot.names() == ["web"]
    assert await snapshot.sweep(state.epoch) == []


async def test_p6_a_row_of_equal_version_that_the_list_lacks_is_skipped(snapshot: Snapshot):
    await snapshot.apply(FIRST.added("web", 200))
    state = await snapshot.run_epoch(SECOND)
    assert state.complete
    assert await snapshot.sweep(state.epoch) == []


async def test_p6_versions_around_2_to_the_100_are_swept_exactly(snapshot: Snapshot):
    await snapshot.apply(FIRST.added("below", BIG - 1), FIRST.added("above", BIG + 1))
    state = await snapshot.run_epoch(Source(rank=(BIG, 2**60)))
    assert await snapshot.sweep(state.epoch) == ["below"]


async def test_w17_a_removed_type_completes_with_no_object_and_sweeps_all(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5, db=6)
    state = await snapshot.writer.end_epoch(SECOND.end(0, removed=True))
    assert state.complete
    assert await snapshot.sweep(state.epoch) == ["db", "web"]


async def test_p6_a_sweep_is_pending_until_it_is_finished_whoever_crashed(snapshot: Snapshot):
    await snapshot.apply(FIRST.listed("web", 5))
    await snapshot.writer.end_epoch(FIRST.end(2))
    assert await snapshot.writer.sweeps.find_pending("eu1") == []
    [completed] = (await snapshot.writer.apply([FIRST.listed("db", 6)])).completed
    assert await snapshot.writer.sweeps.find_pending("eu1") == [completed]
    await snapshot.writer.sweeps.finish(completed)
    assert await snapshot.writer.sweeps.find_pending("eu1") == []
    later = await snapshot.run_epoch(SECOND, web=5, db=6)
    assert await snapshot.writer.sweeps.find_pending("eu1") == [later.epoch]
    await snapshot.writer.removal.drop_cluster("eu1")
    stored_keys = await snapshot.all_keys()
    await snapshot.writer.sweeps.finish(later.epoch)
    assert await snapshot.all_keys() == stored_keys


async def test_p3_a_tombstone_goes_only_when_the_floor_has_passed_it(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5, db=6)
    await snapshot.apply(FIRST.deleted("web", 150), FIRST.deleted("db", 201))
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    await snapshot.run_epoch(SECOND)
    assert [key async for key in snapshot.reader.deleted_keys("eu1", PODS)] == [
        ("prod", "db"),
        ("prod", "web"),
    ]
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1
    assert await snapshot.reader.get_deleted("eu1", PODS, "prod", "web") is None
    assert await snapshot.reader.get_deleted("eu1", PODS, "prod", "db") is not None
    replay = [FIRST.listed("web", 5), FIRST.modified("web", 120), FIRST.deleted("web", 150)]
    assert await snapshot.apply(*replay) == ["stale"] * 3
    assert await snapshot.names() == []


async def test_p3_a_tombstone_stays_while_another_scope_has_not_passed_it(snapshot: Snapshot):
    other = Source(scope="other", rank=(90, 1))
    await snapshot.run_epoch(other, web=5)
    await snapshot.apply(FIRST.deleted("web", 150))
    await snapshot.run_epoch(SECOND)
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    await snapshot.run_epoch(Source(scope="other", rank=(150, 2)))
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1


async def test_p3_a_scope_that_is_listed_no_more_holds_back_only_what_it_has_seen(
    snapshot: Snapshot,
):
    other = Source(scope="other", rank=(90, 1))
    await snapshot.run_epoch(other, db=5)
    await snapshot.run_epoch(FIRST, web=5)
    await snapshot.apply(FIRST.deleted("web", 150), other.deleted("db", 151))
    await snapshot.run_epoch(SECOND)
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1
    assert [name async for _, name in snapshot.reader.deleted_keys("eu1", PODS)] == ["db"]


async def test_p3_what_a_second_scope_has_reported_too_stays_until_that_one_has_passed_it(
    snapshot: Snapshot,
):
    other = Source(scope="other", rank=(90, 1))
    await snapshot.run_epoch(other)
    await snapshot.run_epoch(FIRST)
    await snapshot.apply(FIRST.added("web", 140), other.added("web", 140))
    await snapshot.apply(FIRST.deleted("web", 150))
    await snapshot.run_epoch(SECOND)
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    assert await snapshot.apply_one(other.added("web", 140)) == "stale"


async def test_p3_the_last_state_goes_after_a_while_and_the_tombstone_still_guards(
    snapshot: Snapshot,
):
    await snapshot.run_epoch(FIRST, web=5, db=6)
    await snapshot.apply(FIRST.deleted("web", 150))
    hour, now = timedelta(hours=1), timedelta()
    assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=hour) == 0
    assert await snapshot.writer.removal.find_tombstones("eu1") == [PODS]
    deleted = await snapshot.reader.get_deleted("eu1", PODS, "prod", "web")
    assert deleted is not None
    assert deleted.body == body_of("web", 150)
    assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=now) == 1
    assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=now) == 0
    deleted = await snapshot.reader.get_deleted("eu1", PODS, "prod", "web")
    assert deleted is not None
    assert not deleted.body
    assert await snapshot.apply_one(FIRST.modified("web", 149)) == "stale"


async def test_p3_what_is_deleted_again_is_kept_from_then_on(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    await snapshot.apply(FIRST.deleted("web", 150), FIRST.added("web", 160))
    assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=timedelta()) == 0
    await snapshot.apply(FIRST.deleted("web", 170))
    assert (
        await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=timedelta(minutes=1)) == 0
    )
    assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=timedelta()) == 1


async def test_p3_a_full_store_is_freed_by_a_new_list_and_without_one(
    redis: Redis, snapshot: Snapshot
):
    await snapshot.run_epoch(FIRST, web=5, db=6)
    await snapshot.apply(FIRST.deleted("web", 150), FIRST.deleted("db", 250))
    async with full_store(redis):
        assert (await snapshot.run_epoch(SECOND)).complete
        assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1
        assert await snapshot.writer.removal.drop_last_states("eu1", PODS, kept=timedelta()) == 1
    assert [name async for _, name in snapshot.reader.deleted_keys("eu1", PODS)] == ["db"]


async def test_p3_a_tombstone_that_counts_in_a_running_epoch_stays(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    await snapshot.apply(FIRST.deleted("web", 150), Source(rank=(300, 3)).listed("web", 5))
    await snapshot.run_epoch(SECOND)
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0


async def test_p3_tombstones_of_an_older_incarnation_go_after_the_next_epoch(snapshot: Snapshot):
    await snapshot.run_epoch(FIRST, web=5)
    await snapshot.apply(FIRST.deleted("web", 150))
    restored = Source(incarnation=2, rank=(50, 2))
    await snapshot.apply(restored.added("db", 60))
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 0
    await snapshot.run_epoch(restored)
    assert await snapshot.writer.removal.collect_tombstones("eu1", PODS) == 1


async def test_p6_a_dropped_scope_takes_its_rows_without_a_deletion(snapshot: Snapshot):
    wide, narrow = Source(scope="wide", rank=(100, 1)), Source(scope="narrow", rank=(200, 2))
    labelled = {"labels": {"app": "web"}}
    await snapshot.apply(wide.listed("a", 1, metadata=labelled), wide.listed("b", 2))
    await snapshot.apply(wide.deleted("c", 150))
    await snapshot.apply(narrow.listed("b", 2))
    assert await snapshot.writer.removal.read_scopes("eu1") == {(PODS, "wide"), (PODS, "narrow")}
    assert await snapshot.writer.removal.drop_scope("eu1", PODS, "wide", chunk=1) == 1
    assert await snapshot.names() == ["b"]
    assert await snapshot.names(labels=LabelSelector.parse("app=web")) == []
    assert await snapshot.reader.get_deleted("eu1", PODS, "prod", "c") is None
    assert await snapshot.writer.removal.read_scopes("eu1") == {(PODS, "narrow")}
    assert [kind for _, kind, _ in await snapshot.feed()] == ["added", "added", "unwatched"]
    assert await snapshot.writer.removal.drop_scope("eu1", PODS, "wide") == 0


async def test_p6_p7_of_a_scope_that_is_dropped_no_sweep_is_pending_while_its_rows_go(
    snapshot: Snapshot,
):
    """Or the fuse, which holds it, would see fewer and fewer rows, and let the last ones go."""
    await snapshot.run_epoch(FIRST, **{f"w{i}": i + 1 for i in range(50)})
    await snapshot.run_epoch(SECOND)
    assert await snapshot.writer.sweeps.find_pending("eu1") != []
    dropping = asyncio.ensure_future(snapshot.writer.removal.drop_scope("eu1", PODS, "", chunk=1))
    while not dropping.done():
        rows = await snapshot.reader.count("eu1", PODS)
        pending = await snapshot.writer.sweeps.find_pending("eu1")
        assert rows == 50 or not pending
    assert await dropping == 50


async def test_a_cluster_that_left_leaves_no_key_and_others_stay(snapshot: Snapshot):
    metadata = {"labels": {"app": "web"}, "ownerReferences": [{"uid": "rs"}]}
    clean = await snapshot.all_keys()
    us = Source(cluster="us1", rank=(100, 1))
    await snapshot.apply(us.listed("web", 5, metadata=metadata))
    stored_keys = await snapshot.all_keys()
    await snapshot.apply(
        *(FIRST.listed(f"w{i}", i + 1, metadata=metadata) for i in range(30)),
        FIRST.deleted("gone", 150),
        Source(resource="services", scope="x").added("svc", 9, metadata=metadata),
    )
    await snapshot.writer.end_epoch(FIRST.end(30))
    await snapshot.writer.removal.drop_cluster("eu1")
    assert await snapshot.all_keys() == stored_keys
    assert await snapshot.names(owner="rs", clusters=["eu1", "us1"]) == ["web"]
    assert await snapshot.apply_one(FIRST.added("web", 999)) == "refused"
    assert (await snapshot.feed())[-1][1:] == ("dropped", "")
    await snapshot.writer.removal.drop_cluster("us1")
    assert await snapshot.all_keys() - clean == set() | {
        key for key in stored_keys if key.endswith(":feed")
    }
