"""A request has `left` when its object has left, also after a deletion (T6, rule P8)."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import Redis

from fleetbus.errors import StoreError
from fleetbus.run.current import ObjectRef, Run
from fleetbus.workqueue.queue import Add, decode_trigger
from support.rigs.intake import DB_APP, EU1, WEB_APP, IntakeRig, seen, start
from support.stores.snapshot import PODS as PODS_KEY


def is_web(old: Any, new: Any) -> bool:
    return (new or old)["metadata"].get("labels") == WEB_APP["labels"]


FILTERS: list[dict[str, Any]] = [{"selector": "app=web"}, {"predicate": is_web}]


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("is_projector_first", [False, True])
async def test_t6_what_was_deleted_and_comes_back_as_one_that_does_not_match_has_left(
    rig: IntakeRig, filters: dict[str, Any], *, is_projector_first: bool
) -> None:
    await start(rig, **filters)
    events = [
        EU1.added("a", 1, metadata=WEB_APP),
        EU1.deleted("a", 2, metadata=WEB_APP),
        EU1.added("a", 3, metadata=DB_APP),
    ]
    await rig.tell(events[0])
    if is_projector_first:
        await rig.snapshot.apply(*events)
        await rig.intake.take(events[1:2])
        assert await rig.reconcile() == [seen("a", 3)]  # the new one is not delivered yet
    else:
        await rig.intake.take(events[1:2])
    assert await rig.tell(*events[1:]) == [seen("a", 3, left=True)]
    assert await rig.tell(EU1.deleted("a", 4, metadata=DB_APP)) == []


@pytest.mark.parametrize("filters", FILTERS)
async def test_t6_what_left_and_was_deleted_in_one_batch_is_reported_although_a_successor_was_read(
    rig: IntakeRig, filters: dict[str, Any]
) -> None:
    await start(rig, **filters)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    events = [
        EU1.modified("a", 2, metadata=WEB_APP),
        EU1.modified("a", 3, metadata=DB_APP),
        EU1.deleted("a", 4, metadata=DB_APP),
        EU1.added("a", 5, metadata=DB_APP),
    ]
    await rig.snapshot.apply(*events)
    await rig.intake.take(events[:1])
    assert await rig.reconcile() == [seen("a", 5)]
    await rig.intake.take(events[1:3])
    assert await rig.reconcile() == [seen("a", 5, left=True)]


@pytest.mark.parametrize("filters", FILTERS)
async def test_t6_what_was_deleted_and_comes_back_as_one_that_matches_has_not_left(
    rig: IntakeRig, filters: dict[str, Any]
) -> None:
    await start(rig, **filters)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    runs = await rig.tell(
        EU1.deleted("a", 2, metadata=WEB_APP), EU1.added("a", 3, metadata=WEB_APP)
    )
    assert runs == [seen("a", 3)]


async def test_t6_what_came_back_has_left_although_its_state_was_read_before(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    gone, back = EU1.deleted("a", 2, metadata=WEB_APP), EU1.added("a", 3, metadata=DB_APP)
    await rig.snapshot.apply(gone, back)
    await rig.queue.add([Add(rig.controller.request("eu1", "prod", "a"))])  # a timer
    assert await rig.reconcile() == [seen("a", 3)]
    assert await rig.tell(gone, back) == [seen("a", 3, left=True)]


async def test_t6_a_late_deletion_of_what_was_never_seen_tells_that_what_came_back_has_left(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web")
    gone, back = EU1.deleted("a", 2, metadata=WEB_APP), EU1.added("a", 3, metadata=DB_APP)
    assert await rig.tell(back) == []
    assert await rig.tell(gone) == [seen("a", 3, left=True)]


async def test_t6_whoever_opted_out_of_leaving_is_not_woken_by_what_came_back(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web", wake_on_leave=False)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    assert await rig.tell(EU1.deleted("a", 2, metadata=WEB_APP)) == [seen("a")]
    assert await rig.tell(EU1.added("a", 3, metadata=WEB_APP)) == [seen("a", 3)]
    assert await rig.tell(EU1.modified("a", 4, metadata=DB_APP)) == []
    assert await rig.tell(EU1.deleted("a", 5, metadata=DB_APP)) == []


async def test_t6_a_deletion_that_was_reconciled_is_forgotten(rig: IntakeRig, redis: Redis) -> None:
    await start(rig, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    assert await rig.tell(EU1.deleted("a", 2, metadata=WEB_APP)) == [seen("a")]
    assert not await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")
    assert await rig.tell(EU1.added("a", 3, metadata=DB_APP)) == []


async def test_t6_a_deletion_is_forgotten_by_a_controller_that_reads_elsewhere_too(
    rig: IntakeRig, redis: Redis
) -> None:
    await start(rig, selector="app=web")
    event = EU1.deleted("a", 2, metadata=WEB_APP)
    await rig.snapshot.apply(event)
    await rig.intake.take([event])
    assert await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")
    leases = await rig.queue.take(1)
    trigger = decode_trigger(leases[0].trigger)
    older = Run(leases[0].request, trigger=(1, "1"), own=PODS_KEY)
    await rig.record.note_reads([older])
    assert await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")
    await rig.record.note_reads([Run(leases[0].request, trigger=trigger, own=PODS_KEY)])
    assert not await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")


async def test_t6_a_run_that_begins_at_once_receives_whether_its_object_left(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, selector="app=web")
    add = rig.store.enqueue

    async def add_and_run(*arguments: Any) -> set[ObjectRef]:
        conflicts = await add(*arguments)
        await rig.reconcile()  # as a worker of another process may
        return conflicts

    monkeypatch.setattr(rig.store, "enqueue", add_and_run)
    for version, labels in ((1, WEB_APP), (2, DB_APP), (3, WEB_APP), (4, DB_APP)):
        await rig.tell(EU1.modified("a", version, metadata=labels))
        assert rig.runs == [seen("a", version, left=labels is DB_APP)]
        rig.runs.clear()
    await rig.tell(EU1.deleted("a", 5, metadata=DB_APP), EU1.added("a", 6, metadata=WEB_APP))
    assert rig.runs[-1] == seen("a", 6)
    await rig.tell(EU1.deleted("a", 7, metadata=WEB_APP), EU1.added("a", 8, metadata=DB_APP))
    assert rig.runs[-1] == seen("a", 8, left=True)


async def test_t6_a_change_whose_process_was_killed_before_its_ack_is_not_forgotten(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    add = rig.store.enqueue

    async def add_and_stop(*arguments: Any) -> None:
        await add(*arguments)
        await rig.reconcile()
        raise StoreError("the process was killed")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "enqueue", add_and_stop)
        with pytest.raises(StoreError):
            await rig.tell(EU1.modified("a", 2, metadata=DB_APP))
    assert rig.runs[-1] == seen("a", 2, left=True)
    # Another process receives the next change first; then the one that was not acknowledged.
    assert await rig.beside().tell(EU1.modified("a", 3, metadata=WEB_APP)) == [seen("a", 3)]
    assert await rig.tell(EU1.modified("a", 2, metadata=DB_APP)) == []


async def test_t6_what_came_and_left_in_one_batch_is_reported_although_a_run_is_faster(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start(rig, selector="app=web")
    add = rig.store.enqueue

    async def add_and_run(*arguments: Any) -> set[ObjectRef]:
        conflicts = await add(*arguments)
        await rig.reconcile()
        return conflicts

    monkeypatch.setattr(rig.store, "enqueue", add_and_run)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP), EU1.modified("a", 2, metadata=DB_APP))
    assert rig.runs[-1] == seen("a", 2, left=True)
    assert await rig.tell(EU1.added("b", 3, metadata=DB_APP)) == []


async def test_t6_a_late_state_that_matched_is_reported_although_its_successor_was_read(
    rig: IntakeRig,
) -> None:
    await start(rig, predicate=is_web)
    late, now = EU1.added("a", 1, metadata=WEB_APP), EU1.modified("a", 2, metadata=DB_APP)
    assert await rig.tell(now) == []
    await rig.queue.add([Add(rig.controller.request("eu1", "prod", "a"))])  # a timer
    assert await rig.reconcile() == [seen("a", 2)]
    assert await rig.tell(late) == [seen("a", 2, left=True)]
    assert await rig.tell(late) == []
    assert (
        await rig.tell(EU1.added("b", 3, metadata=DB_APP), EU1.modified("b", 4, metadata=DB_APP))
        == []
    )


async def test_t6_a_run_that_began_before_its_object_left_proves_nothing_of_that(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    left = EU1.modified("a", 2, metadata=DB_APP)
    await rig.snapshot.apply(left)
    began = Run(rig.controller.request("eu1", "prod", "a"))
    began.note_read(ObjectRef("eu1", PODS_KEY, "prod", "a"), (1, "2"))
    await rig.intake.take([left])
    leases = await rig.queue.take(1)
    await rig.record.note_reads([began])  # it ends, and another process of ours is killed now
    await rig.queue.done(leases)
    assert await rig.tell(left) == []
    assert await rig.enqueue_all() == [seen("a", 2, left=True)]
    assert await rig.enqueue_all() == []
