"""The projector: what it refuses, what it asks for, and how it comes back from every loss."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import REGISTRY
from pydantic import ValidationError
from structlog.testing import capture_logs

from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import ARCHIVER_MAX_ACK_PENDING, consumer_info
from fleetbus.bus.jetstream import call_jetstream, stream_info
from fleetbus.bus.reader_groups import ReaderGroup, Selection, register
from fleetbus.snapshot.records import ResourceState
from fleetbus_proto import headers
from fleetbus_proto.keys import KV_BUCKET, kv_reader
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, EVENTS_ALL, STREAM, event_subject
from fleetbus_reconciler.settings import Subscriber
from support.eventually import eventually, stays
from support.rigs.projector import ProjectorRig, fleet_state, heartbeat
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

SOURCE = Source()


async def acked(rig: ProjectorRig) -> None:
    """Wait until the projector has handled all that the stream holds."""
    await eventually(rig.is_through)


async def names(rig: ProjectorRig, cluster: str = "eu1") -> list[str]:
    return await rig.snapshot.names(clusters=[cluster])


async def test_p1_events_of_a_cluster_that_is_not_in_the_fleet_are_acked_and_leave_nothing(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    foreign = Source(cluster="mars")
    await rig.publish(SOURCE.added("a", 1), foreign.added("x", 1), heartbeat("mars"))
    await rig.publish_epoch(Source(cluster="mars", rank=(5, 5)), y=4)
    await acked(rig)
    assert await names(rig) == ["a"]
    assert await names(rig, "mars") == []
    assert await rig.record("mars") is None
    assert not [key for key in await rig.snapshot.all_keys() if "mars" in key]


async def test_w20_a_cluster_that_leaves_is_dropped_and_joining_again_lists_it_again(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1", "us1")
    await rig.publish(heartbeat(), heartbeat("us1"))
    await rig.publish_epoch(Source(rank=(5, 5)), a=4)
    await rig.synced()
    rig.provider.tell("us1")
    await eventually(lambda: rig.has_members("us1"))
    await rig.publish(SOURCE.added("late", 9), heartbeat())
    await acked(rig)
    assert not [key for key in await rig.snapshot.all_keys() if "eu1" in key]
    rig.provider.tell("eu1", "us1")
    await eventually(lambda: rig.has_members("eu1", "us1"))
    first = await rig.resync_request()
    await rig.publish(heartbeat())
    request = await rig.resync_requested("no complete list", after=first.min_epoch if first else 0)
    rank = (9, request.min_epoch)
    await rig.publish_epoch(Source(rank=rank), a=4, b=8)
    await rig.synced(epoch=f"9 {request.min_epoch}")
    assert await names(rig) == ["a", "b"]


async def test_p1_no_cluster_is_dropped_before_every_provider_has_answered(
    rig: ProjectorRig,
) -> None:
    await rig.snapshot.set_up("eu1")
    await rig.snapshot.apply(SOURCE.added("a", 1))
    rig.start()
    await eventually(lambda: stream_info(rig.bus))
    await stays(["a"], lambda: names(rig), timedelta(seconds=0.3))
    rig.provider.tell("us1")
    await eventually(lambda: rig.has_members("us1"))
    assert await names(rig) == []


async def test_p1_a_heartbeat_never_brings_back_a_cluster_that_left(rig: ProjectorRig) -> None:
    await rig.started("eu1", "us1")
    for turn in range(5):
        rig.provider.tell("us1")
        await rig.publish(*(heartbeat() for _ in range(5)))
        await eventually(lambda: rig.has_members("us1"))
        await acked(rig)
        assert await rig.has_members("us1"), turn
        assert not [key for key in await rig.snapshot.all_keys() if "eu1" in key]
        rig.provider.tell("eu1", "us1")
        await eventually(lambda: rig.has_members("eu1", "us1"))


async def test_b18_an_unreadable_event_is_counted_logged_and_asked_for_and_the_stream_goes_on(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    name = ("fleetbus_rejected_messages_total", {"consumer": "projector", "cluster": "eu1"})
    before = REGISTRY.get_sample_value(*name) or 0.0
    event = SOURCE.modified("a", 1)
    subject = event_subject("eu1", "core", "pods", "prod", "a", event.verb)
    with capture_logs() as logs:
        await rig.publish_raw(subject, b"\xc1", headers.build(event, MESSAGE_KEY))
        await rig.publish(SOURCE.added("b", 2))
        await acked(rig)
    assert await names(rig) == ["b"]
    assert REGISTRY.get_sample_value(*name) == before + 1
    aside = [entry for entry in logs if entry["event"] == "message_rejected"]
    assert [(entry["subject"], entry["sequence"]) for entry in aside] == [(subject, 1)]
    await rig.resync_requested("could not be read")


async def test_b18_an_unreadable_listed_object_is_left_to_the_count_of_its_epoch(
    rig: ProjectorRig,
) -> None:
    rig.settings["incomplete_wait"] = timedelta(milliseconds=800)
    await rig.started("eu1")
    source = Source(rank=(5, 5))
    event = source.listed("a", 1)
    subject = event_subject("eu1", "core", "pods", "prod", "a", event.verb)
    await rig.publish_raw(subject, b"\xc1", headers.build(event, MESSAGE_KEY))
    await rig.publish(source.listed("b", 2), source.end(2))
    await acked(rig)
    assert await rig.resync_request() is None
    await rig.resync_requested("did not arrive")


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_p5_an_epoch_that_lacks_objects_is_asked_for_again_also_after_a_restart(
    rig: ProjectorRig, *, is_restarted: bool
) -> None:
    await rig.started("eu1")
    source = Source(rank=(50, 7))
    await rig.publish(source.listed("a", 1), source.end(2))
    await acked(rig)
    if is_restarted:
        await rig.stop()
        rig.start()
    request = await rig.resync_requested("did not arrive")
    assert request.min_epoch > 7
    assert request.epoch == 7
    assert (await rig.record()) is None  # not complete, so not synced


@pytest.mark.slow
async def test_p5_an_epoch_whose_last_object_comes_late_is_complete_and_nothing_is_asked_for(
    rig: ProjectorRig,
) -> None:
    rig.settings["incomplete_wait"] = timedelta(seconds=1)
    await rig.started("eu1")
    source = Source(rank=(50, 7))
    await rig.publish(source.listed("a", 1), source.end(2), heartbeat(state="listing"))
    await acked(rig)
    assert await rig.state() is ResourceState.LISTING
    await rig.publish(source.listed("b", 2))
    await rig.synced(epoch="50 7")
    await stays(None, rig.resync_request, timedelta(seconds=1.2))


async def test_p13_an_emptied_store_is_filled_again_without_a_restart(rig: ProjectorRig) -> None:
    await rig.started("eu1")
    await rig.publish(heartbeat())
    await rig.publish_epoch(Source(rank=(5, 5)), a=4, b=4)
    await rig.synced()
    before, generation = await rig.resync_request(), await rig.snapshot.reader.generation()
    await rig.redis.flushall()
    await eventually(rig.snapshot.reader.generation)
    assert await rig.snapshot.reader.generation() != generation
    await eventually(lambda: rig.has_members("eu1"))
    await rig.publish(heartbeat())
    request = await rig.resync_requested(
        "no complete list", after=before.min_epoch if before else 0
    )
    assert await rig.state() is ResourceState.LISTING
    await rig.publish_epoch(Source(rank=(6, request.min_epoch)), a=4, c=6)
    await rig.synced()
    assert await names(rig) == ["a", "c"]
    assert rig.deleted == []  # promise 1: a lost store deletes nothing


async def test_p13_a_list_that_was_under_way_when_the_store_was_emptied_is_asked_for_again(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    await rig.publish(heartbeat(state="listing"), Source(rank=(5, 5)).listed("a", 4))
    await acked(rig)
    assert await rig.resync_request() is None  # the first list of a new cluster is not asked for
    await rig.redis.flushall()
    await eventually(lambda: rig.has_members("eu1"))
    await rig.publish(heartbeat(state="listing"))
    await rig.resync_requested("no complete list")


async def test_p13_an_event_that_meets_an_emptied_store_is_not_lost(rig: ProjectorRig) -> None:
    await rig.started("eu1")
    await rig.publish(SOURCE.added("a", 1))
    await acked(rig)
    await rig.redis.flushall()
    await rig.publish(SOURCE.added("b", 2), SOURCE.added("c", 3))
    await acked(rig)
    assert await names(rig) == ["b", "c"]


async def test_p14_an_epoch_that_was_completed_before_the_store_was_emptied_makes_nothing_synced(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    state = await rig.snapshot.run_epoch(Source(rank=(5, 5)), a=4)
    await rig.redis.flushall()
    await eventually(lambda: rig.has_members("eu1"))
    # What a sweep that was under way then does; the store does not hold its list any more.
    await fleet_state(rig).mark_synced(state.epoch)
    assert await rig.record() is None


async def test_b12_a_wiped_stream_is_made_again_and_consumed_again(rig: ProjectorRig) -> None:
    await rig.started("eu1")
    await rig.publish(SOURCE.added("a", 1))
    await acked(rig)
    await call_jetstream(rig.bus, f"STREAM.DELETE.{STREAM}")
    await eventually(lambda: stream_info(rig.bus))
    await eventually(lambda: consumer_info(rig.bus, "projector"))
    await rig.publish(SOURCE.added("b", 2))

    async def has_both() -> bool:
        # A new consumer may say that nothing is pending before it has received the message.
        return await names(rig) == ["a", "b"]

    await eventually(has_both)


@pytest.mark.slow
async def test_w20_the_resync_requests_are_written_again_after_the_bucket_was_lost(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    await rig.publish(heartbeat(incarnation=3))
    await rig.publish_epoch(Source(rank=(5, 55)), a=4)
    await rig.synced()
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await eventually(lambda: stream_info(rig.bus, f"KV_{KV_BUCKET}"))
    request = await rig.resync_requested("bucket was lost")
    assert (request.incarnation, request.epoch) == (3, 55)


async def test_b12_a_projector_that_finds_drifted_configuration_waits_and_changes_nothing(
    rig: ProjectorRig,
) -> None:
    config = {"name": STREAM, "subjects": ["fleetbus.events.>"], "storage": "memory"}
    await call_jetstream(rig.bus, f"STREAM.CREATE.{STREAM}", config)
    with capture_logs() as logs:
        rig.start()
        await eventually(lambda: "is needed" in str(logs))
    info = await stream_info(rig.bus)
    assert info is not None
    assert info["config"]["storage"] == "memory"


async def test_s5_durables_of_subscribers_are_created_and_one_that_differs_stops_nothing(
    rig: ProjectorRig,
) -> None:
    eu1, us1 = "fleetbus.events.eu1.>", "fleetbus.events.us1.>"
    rig.settings["subscribers"] = [{"durable": "audit", "subjects": [eu1]}]
    await rig.started("eu1")
    await rig.stop()
    rig.settings["subscribers"] = [
        {"durable": "audit", "subjects": [us1]},
        {"durable": "other", "subjects": [eu1, us1]},
        {"durable": "pager", "subjects": ["fleetbus.distribution.*.*._fleet.held"]},
    ]
    with capture_logs() as logs:
        rig.start()
        await eventually(lambda: consumer_info(rig.bus, "pager", DISTRIBUTION_STREAM))
    assert {log["durable"] for log in logs if log["event"] == "subscriber_drifted"} == {"audit"}
    audit = await consumer_info(rig.bus, "audit")
    other = await consumer_info(rig.bus, "other")
    assert audit is not None
    assert other is not None
    assert audit["config"]["filter_subjects"] == [eu1]
    assert other["config"]["filter_subjects"] == [eu1, us1]
    with pytest.raises(ValidationError, match="make another subscriber"):
        Subscriber(durable="both", subjects=(eu1, "fleetbus.distribution.>"))


async def test_b12_the_durable_of_the_archiver_is_created_if_it_is_wanted_and_made_anew(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    assert await consumer_info(rig.bus, ARCHIVER) is None
    await rig.stop()
    rig.settings["archiver"] = True
    rig.start()
    info = await eventually(lambda: consumer_info(rig.bus, ARCHIVER))
    assert info is not None
    assert info["config"]["filter_subjects"] == [EVENTS_ALL]
    assert info["config"]["max_ack_pending"] == ARCHIVER_MAX_ACK_PENDING
    await call_jetstream(rig.bus, f"CONSUMER.DELETE.{STREAM}.{ARCHIVER}")
    await eventually(lambda: consumer_info(rig.bus, ARCHIVER))


async def test_b12_one_controllers_garbage_does_not_keep_the_others_from_their_durables(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    kv = rig.connections.kv
    await kv.put(kv_reader("aaa", "0"), b"\xff")
    await register(kv, ReaderGroup({"bad": Selection(["fleetbus.nowhere.>"])}))
    await register(kv, ReaderGroup({"good": Selection(["fleetbus.events.*.core.pods.>"])}))
    await eventually(lambda: consumer_info(rig.bus, "good-1"))


async def test_two_projectors_share_the_work_and_one_may_stop(rig: ProjectorRig) -> None:
    await rig.started("eu1")
    rig.start("second")
    await rig.publish(heartbeat())
    objects = {f"o{number}": number + 1 for number in range(60)}
    await rig.publish_epoch(Source(rank=(100, 5)), **objects)
    await rig.synced(epoch="100 5")
    for turn in range(10):
        await rig.publish(heartbeat(), SOURCE.modified("o1", 200 + turn))
    await acked(rig)
    record = await rig.record()
    assert record is not None
    assert record.epoch == "100 5"  # no heartbeat of one wrote over the other's epoch
    await rig.stop()
    await rig.publish_epoch(Source(rank=(300, 6)), **{f"o{number}": 250 for number in range(59)})
    await rig.synced(epoch="300 6")
    await eventually(lambda: [event.name for event in rig.deleted] == ["o59"])


async def test_p9_nothing_is_acked_while_the_store_is_full_and_all_is_applied_later(
    rig: ProjectorRig,
) -> None:
    await rig.started("eu1")
    await rig.publish(SOURCE.added("a", 1))
    await acked(rig)
    await rig.redis.config_set("maxmemory", "1")
    try:
        await rig.publish(SOURCE.added("b", 2))
        await eventually(lambda: _is_pending(rig, 1))
        await stays(True, lambda: _is_pending(rig, 1), timedelta(seconds=0.2))
    finally:
        await rig.redis.config_set("maxmemory", "0")
    await acked(rig)
    assert await names(rig) == ["a", "b"]


async def _is_pending(rig: ProjectorRig, number: int) -> bool:
    info = await consumer_info(rig.bus, "projector")
    return info is not None and info["num_ack_pending"] == number
