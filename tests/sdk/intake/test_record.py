"""The controller's own record decides, never what the snapshot made of an event (P8, P12)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis
from structlog.testing import capture_logs

from fleetbus.controller.controller import Controller
from fleetbus.errors import StoreError
from fleetbus.fleet.fleet import Fleet
from fleetbus.intake.matching import Reason
from fleetbus.intake.record import MAX_TARGETS, STATE_BYTES, Record
from fleetbus.reconcile import Request
from support.rigs.intake import (
    DB_APP,
    EU1,
    PODS,
    WEB_APP,
    IntakeRig,
    Seen,
    is_changed,
    seen,
    start,
    to_ref,
)
from support.stores.snapshot import PODS as PODS_KEY
from support.stores.snapshot import Source


async def test_s8_what_is_held_and_cannot_be_read_is_looked_at_anew(
    rig: IntakeRig, redis: Redis
) -> None:
    await start(rig)
    await rig.tell(EU1.added("a", 5))
    record = "fleetbus:{q:copier}:record:eu1:core/pods"
    [(field, value)] = dict(await redis.hgetall(record)).items()  # type: ignore[misc]
    await redis.hset(record, field, value.partition(b"\n")[0] + b"\nrevision\xc1")  # type: ignore[misc]
    with capture_logs() as lines:
        assert await rig.tell(EU1.modified("a", 6)) == [seen("a", 6)]
    assert "record_unreadable" in {line["event"] for line in lines}
    assert await rig.tell(EU1.modified("a", 6)) == []


# --- what is proved -------------------------------------------------------------------------------


async def test_p8_what_a_successful_reconcile_has_read_is_not_enqueued_again(
    rig: IntakeRig,
) -> None:
    await start(rig)
    event = EU1.added("a", 5)
    assert await rig.tell(event) == [seen("a", 5)]
    labels = {"controller": "copier", "source": "event"}
    before = REGISTRY.get_sample_value("fleetbus_skipped_reconciles_total", labels) or 0.0
    assert await rig.tell(event) == []
    assert await rig.tell(EU1.listed("a", 5)) == []
    now = REGISTRY.get_sample_value("fleetbus_skipped_reconciles_total", labels)
    assert now == before + 2
    assert await rig.tell(EU1.modified("a", 6)) == [seen("a", 6)]


async def test_p8_a_state_that_the_projector_showed_earlier_needs_no_further_run(
    rig: IntakeRig,
) -> None:
    await start(rig)
    first, second = EU1.added("a", 5), EU1.modified("a", 6)
    await rig.snapshot.apply(first, second)
    assert await rig.tell(first) == [seen("a", 6)]
    assert await rig.tell(second) == []


async def test_p8_what_a_failed_reconcile_has_read_is_enqueued_again(rig: IntakeRig) -> None:
    await start(rig)
    event = EU1.added("a", 5)
    await rig.snapshot.apply(event)
    await rig.intake.take([event])
    await rig.reconcile(is_success=False)
    assert await rig.tell(event) == [seen("a", 5)]


async def test_p8_a_newer_incarnation_is_a_newer_version_whatever_its_number(
    rig: IntakeRig,
) -> None:
    await start(rig)
    await rig.tell(EU1.added("a", 900))
    restored = Source(cluster="eu1", incarnation=2)
    assert await rig.tell(restored.listed("a", 7)) == [seen("a", 7)]


async def test_p8_a_run_that_ended_before_the_record_was_written_counts_all_the_same(
    rig: IntakeRig,
) -> None:
    await start(rig)
    event = EU1.added("a", 5)
    await rig.snapshot.apply(event)
    await rig.queue.add((await rig.intake._router.evaluate(event)).adds)  # pyright: ignore[reportPrivateUsage]
    assert await rig.reconcile() == [seen("a", 5)]  # nothing is recorded of it yet
    assert await rig.tell(event) == []
    assert await rig.enqueue_all() == []


async def test_a_deletion_leaves_nothing_in_the_record(rig: IntakeRig, redis: Redis) -> None:
    await start(rig)
    await rig.tell(EU1.added("a", 5))
    assert await rig.tell(EU1.deleted("a", 6)) == [seen("a")]
    assert not await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")


# --- filters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selector", "matching"),
    [
        ("app=web", {"web"}),
        ("app==web", {"web"}),
        ("app!=web", {"db", "none"}),
        ("app in (web, db)", {"web", "db"}),
        ("app notin (web)", {"db", "none"}),
        ("app", {"web", "db"}),
        ("!app", {"none"}),
        ("app,app!=db", {"web"}),
    ],
)
@pytest.mark.parametrize("field", ["selector", "annotation_selector"])
async def test_t6_selectors_of_labels_and_annotations_have_the_full_syntax(
    rig: IntakeRig, field: str, selector: str, matching: set[str]
) -> None:
    await start(rig, **{field: selector})
    kind = "labels" if field == "selector" else "annotations"
    runs = await rig.tell(
        EU1.added("web", 1, metadata={kind: {"app": "web"}}),
        EU1.added("db", 2, metadata={kind: {"app": "db"}}),
        EU1.added("none", 3),
    )
    assert {run.place.rpartition("/")[2] for run in runs} == matching


async def test_t6_all_filters_must_hold(rig: IntakeRig) -> None:
    def is_wanted(_old: Any, new: Any) -> bool:
        return new is not None and new["metadata"].get("wanted") == "yes"

    await start(
        rig,
        namespaces=["prod"],
        selector="app=web",
        annotation_selector="team",
        predicate=is_wanted,
        clusters=["eu*"],
    )
    metadata = {**WEB_APP, "annotations": {"team": "x"}, "wanted": "yes"}
    runs = await rig.tell(
        EU1.added("all", 1, metadata=metadata),
        EU1.added("label", 2, metadata=metadata | DB_APP),
        EU1.added("annotation", 3, metadata={**WEB_APP, "wanted": "yes"}),
        EU1.added("predicate", 4, metadata={**metadata, "wanted": "no"}),
        EU1.added("namespace", 5, metadata=metadata, namespace="dev"),
        Source(cluster="us1").added("cluster", 6, metadata=metadata),
    )
    assert runs == [seen("all", 1)]


async def test_t6_what_leaves_a_selector_wakes_once_more_and_says_so(rig: IntakeRig) -> None:
    await start(rig, selector="app=web")
    assert await rig.tell(EU1.added("a", 1, metadata=WEB_APP)) == [seen("a", 1)]
    assert await rig.tell(EU1.modified("a", 2, metadata=DB_APP)) == [seen("a", 2, left=True)]
    assert await rig.tell(EU1.modified("a", 3, metadata=DB_APP)) == []
    assert await rig.tell(EU1.modified("a", 4, metadata=WEB_APP)) == [seen("a", 4)]
    assert await rig.tell(EU1.modified("a", 5, metadata=DB_APP)) == [seen("a", 5, left=True)]
    assert await rig.tell(EU1.deleted("a", 6, body=None)) == []


async def test_t6_leaving_counts_although_its_state_was_read_before(rig: IntakeRig) -> None:
    await start(rig, selector="app=web")
    first, second = EU1.added("a", 1, metadata=WEB_APP), EU1.modified("a", 2, metadata=DB_APP)
    await rig.snapshot.apply(first, second)  # the projector is faster
    await rig.intake.take([first])
    assert [run.left for run in await rig.reconcile()] == [True]
    assert await rig.tell(second) == []


async def test_t6_an_author_may_opt_out_of_leaving(rig: IntakeRig) -> None:
    await start(rig, selector="app=web", wake_on_leave=False)
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    assert await rig.tell(EU1.modified("a", 2, metadata=DB_APP)) == []
    assert await rig.tell(EU1.modified("a", 3, metadata=WEB_APP)) == [seen("a", 3)]


async def test_what_never_matched_wakes_nobody_and_leaves_no_trace(
    rig: IntakeRig, redis: Redis
) -> None:
    await start(rig, selector="app=web")
    assert await rig.tell(EU1.added("a", 1, metadata=DB_APP), EU1.deleted("a", 2, body=None)) == [
        seen("a")  # of a deletion without a body nothing is known: in doubt it wakes
    ]
    assert await rig.tell(EU1.added("b", 3, metadata=DB_APP)) == []
    assert not await redis.hlen(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}")


async def test_one_of_two_watches_that_matches_keeps_an_object_in(rig: IntakeRig) -> None:
    rig.controller.watch(PODS, selector="app=db")
    await start(rig, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata=WEB_APP))
    assert await rig.tell(EU1.modified("a", 2, metadata=DB_APP)) == [seen("a", 2)]
    gone = {"labels": {"app": "x"}}
    assert await rig.tell(EU1.modified("a", 3, metadata=gone)) == [seen("a", 3, left=True)]


def never(_old: Any, _new: Any) -> bool:
    return False


async def test_an_object_too_large_for_the_bus_passes_every_filter(rig: IntakeRig) -> None:
    await start(rig, selector="app=web", predicate=never)
    assert await rig.tell(EU1.added("a", 1, body=None, degraded="oversized")) == [seen("a", 1)]


# --- predicates -----------------------------------------------------------------------------------


async def test_t6_a_predicate_sees_what_this_controller_saw_last(rig: IntakeRig) -> None:
    pairs: list[tuple[Any, Any]] = []

    def note(old: Any, new: Any) -> bool:
        versions = [o and o["metadata"]["resourceVersion"] for o in (old, new)]
        pairs.append((versions[0], versions[1]))
        return True

    await start(rig, predicate=note)
    events = [EU1.added("a", 1), EU1.modified("a", 2), EU1.modified("a", 3)]
    await rig.snapshot.apply(*events)  # the projector has seen it all before
    for event in (*events, EU1.deleted("a", 4)):
        await rig.tell(event)
    assert [pair for pair in pairs if pair[0]] == [("1", "2"), ("2", "3"), ("3", None)]
    assert pairs[0] == (None, "1")


async def test_t6_changes_that_do_not_matter_wake_nobody_and_do_not_count_as_leaving(
    rig: IntakeRig,
) -> None:
    await start(rig, predicate=is_changed)
    assert await rig.tell(EU1.added("a", 1, metadata={"generation": 1})) == [seen("a", 1)]
    assert await rig.tell(EU1.modified("a", 2, metadata={"generation": 1})) == []
    assert await rig.tell(EU1.modified("a", 3, metadata={"generation": 2})) == [seen("a", 3)]
    assert await rig.tell(EU1.deleted("a", 4)) == [seen("a")]


async def test_t6_a_predicate_of_updates_alone_is_asked_for_nothing_else(
    rig: IntakeRig,
) -> None:
    def update(old: Any, new: Any) -> bool:
        return old is not None and new is not None and is_changed(old, new)

    await start(rig, predicate=update)
    assert await rig.tell(EU1.added("a", 1, metadata={"generation": 1})) == []
    assert await rig.tell(EU1.modified("a", 2, metadata={"generation": 2})) == [seen("a", 2)]
    assert await rig.tell(EU1.modified("a", 3, metadata={"generation": 2})) == []
    assert await rig.tell(EU1.deleted("a", 4)) == []


async def test_t6_what_a_predicate_matched_and_does_not_any_more_has_left(
    rig: IntakeRig,
) -> None:
    def is_on(_old: Any, new: Any) -> bool:
        return new is None or new["metadata"].get("on") == "yes"

    await start(rig, predicate=is_on)
    assert await rig.tell(EU1.added("a", 1, metadata={"on": "yes"})) == [seen("a", 1)]
    off = {"on": "no"}
    assert await rig.tell(EU1.modified("a", 2, metadata=off)) == [seen("a", 2, left=True)]
    assert await rig.tell(EU1.modified("a", 3, metadata=off)) == []


async def test_an_object_too_large_to_be_kept_has_no_old_state(rig: IntakeRig) -> None:
    import os  # noqa: PLC0415 -- what cannot be compressed

    await start(rig, predicate=is_changed)
    large = {"generation": 1, "filler": os.urandom(STATE_BYTES).hex()}
    assert await rig.tell(EU1.added("a", 1, metadata=large)) == [seen("a", 1)]
    assert await rig.tell(EU1.modified("a", 2, metadata=large)) == [seen("a", 2)]


async def test_a_predicate_that_raises_requests_a_resync_and_is_called_again(
    rig: IntakeRig,
) -> None:
    is_broken = [True]

    def fails(old: Any, new: Any) -> bool:
        if is_broken[0]:
            raise KeyError("spec")
        return is_changed(old, new)

    await start(rig, predicate=fails)
    with capture_logs() as logs:
        assert await rig.tell(EU1.added("a", 1)) == []
    assert [line["event"] for line in logs] == ["predicate_failed"]
    assert rig.resyncs == ["eu1"]
    is_broken[0] = False
    assert await rig.enqueue_all(Reason.RESYNC, "eu1") == [seen("a", 1)]


# --- mapped watches -------------------------------------------------------------------------------


async def test_p8_a_mapped_watch_is_never_skipped(rig: IntakeRig) -> None:
    await start(rig, map=to_ref)
    event = EU1.added("a", 1, metadata={"ref": "one"})
    for _ in range(2):
        assert [run.place for run in await rig.tell(event)] == ["us1/x/one"]


async def test_an_object_that_turns_to_another_wakes_both(rig: IntakeRig) -> None:
    await start(rig, map=to_ref)
    await rig.tell(EU1.added("a", 1, metadata={"ref": "one"}))
    runs = await rig.tell(EU1.modified("a", 2, metadata={"ref": "two"}))
    assert {run.place for run in runs} == {"us1/x/one", "us1/x/two"}
    runs = await rig.tell(EU1.deleted("a", 3, metadata={"ref": "two"}))
    assert [run.place for run in runs] == ["us1/x/two"]


async def test_t6_leaving_a_mapped_watch_wakes_whom_it_woke_last(rig: IntakeRig) -> None:
    await start(rig, map=to_ref, selector="app=web")
    await rig.tell(EU1.added("a", 1, metadata={"ref": "one", **WEB_APP}))
    runs = await rig.tell(EU1.modified("a", 2, metadata={"ref": "two", **DB_APP}))
    assert runs == [Seen("us1/x/one", "", left=False)]
    assert await rig.tell(EU1.modified("a", 3, metadata={"ref": "two", **DB_APP})) == []


async def test_p12_after_a_gap_very_many_are_woken_although_the_predicate_sees_no_change(
    rig: IntakeRig,
) -> None:
    def to_many(_obj: Any, _own: Request, _fleet: Fleet) -> Iterable[Request]:
        return [Request("", "us1", "x", f"n{i}") for i in range(MAX_TARGETS + 1)]

    def is_new(old: Any, _new: Any) -> bool:
        return old is None

    await start(rig, map=to_many, predicate=is_new)
    assert len(await rig.tell(EU1.added("a", 1))) == MAX_TARGETS + 1
    assert len(await rig.enqueue_all(Reason.GAP, "eu1")) == MAX_TARGETS + 1


async def test_a_map_may_be_a_plain_function_and_may_name_very_many(rig: IntakeRig) -> None:
    def to_many(obj: Any, _own: Request, _fleet: Fleet) -> Iterable[Request]:
        return [Request("", "us1", "x", f"n{i}") for i in range(obj["metadata"]["count"])]

    await start(rig, map=to_many, selector="app=web")
    assert (
        len(await rig.tell(EU1.added("a", 1, metadata={"count": MAX_TARGETS + 1, **WEB_APP})))
        == MAX_TARGETS + 1
    )
    # So many are not remembered; leaving asks the map.
    assert (
        len(await rig.tell(EU1.modified("a", 2, metadata={"count": MAX_TARGETS + 1, **DB_APP})))
        == MAX_TARGETS + 1
    )


# --- several processes ----------------------------------------------------------------------------


async def test_p8_of_two_processes_the_one_that_is_late_does_not_hide_that_an_object_left(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web")
    other = rig.beside()
    matching, left = EU1.added("a", 1, metadata=WEB_APP), EU1.modified("a", 2, metadata=DB_APP)
    await rig.snapshot.apply(matching)
    entries = await rig.record.load([])
    assert entries == {}
    # The second change is handled first, and is of no interest to whoever has seen nothing.
    await rig.snapshot.apply(left)
    await other.intake.take([left])
    await rig.intake.take([matching])
    runs = await rig.reconcile()
    assert runs
    assert runs[-1] == seen("a", 2, left=True)


@pytest.mark.parametrize("is_reported_more", [False, True])
async def test_p8_a_process_that_fails_before_it_has_compared_its_entry_hides_nothing(
    rig: IntakeRig, monkeypatch: pytest.MonkeyPatch, *, is_reported_more: bool
) -> None:
    await start(rig, selector="app=web")
    other = rig.beside()
    first, second = EU1.added("a", 1, metadata=WEB_APP), EU1.modified("a", 2, metadata=WEB_APP)
    left = EU1.modified("a", 3, metadata=DB_APP)
    await rig.snapshot.apply(first, second, left)
    await other.intake.take([left])

    async def fail(*_: Any) -> None:
        raise StoreError("the process was killed")

    monkeypatch.setattr(rig.snapshot.reader, "versions", fail)
    with pytest.raises(StoreError):
        await rig.intake.take([first])
    if is_reported_more:
        await other.intake.take([second])
    await other.intake.take([first])  # it was not acknowledged
    assert (await rig.beside().reconcile())[-1] == seen("a", 3, left=True)


async def test_p8_a_write_to_the_record_that_was_overtaken_is_decided_anew(
    rig: IntakeRig,
) -> None:
    await start(rig, selector="app=web")
    other = rig.beside()
    races = 0
    for version in range(1, 40, 2):
        name = f"p{version}"
        pair = (
            EU1.added(name, version, metadata=WEB_APP),
            EU1.modified(name, version + 1, metadata=DB_APP),
        )
        await rig.snapshot.apply(*pair)
        await asyncio.gather(rig.intake.take([pair[0]]), other.intake.take([pair[1]]))
        runs = await rig.reconcile()
        assert not runs or runs[-1].left
        races += 1
    assert races == 20


async def test_p9_a_record_that_cannot_be_written_keeps_the_batch(
    rig: IntakeRig, redis: Redis
) -> None:
    await start(rig)
    await redis.set(f"fleetbus:{{q:copier}}:record:eu1:{PODS_KEY}", "not a hash")
    with pytest.raises(Exception, match="WRONGTYPE"):
        await rig.tell(EU1.added("a", 1))


def test_the_record_of_a_controller_without_filters_asks_nothing_before_a_run() -> None:
    controller = Controller("all")
    controller.watch(PODS)
    record = Record(Redis(), controller)
    answer = asyncio.run(record.has_left(controller.request("eu1", "prod", "a")))
    assert answer is False  # nothing listens at this client's address
