"""Who makes which durable, when it may go, and how a controller finds it again (rule B12)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.bus.buffer import Delivery
from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.consume import Consumer
from fleetbus.bus.durable_names import PROJECTOR
from fleetbus.bus.durables import (
    Registration,
    apply_registration,
    consumer_info,
    delete_consumer,
    ensure_consumer,
    filters_for,
    read_registration,
    register,
    registered_controllers,
    report_synced,
)
from fleetbus.bus.jetstream import call_jetstream, ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.controller.controller import Controller
from fleetbus.errors import BusError
from fleetbus.intake.binding import Binding
from fleetbus_proto import codec, headers
from fleetbus_proto.keys import KV_BUCKET, kv_controller
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import EVENTS_ALL, STREAM, STREAM_SUBJECTS, event_subject
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually, stays
from support.objects import pod
from support.rigs.fleet import Recorder, Rig
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

OpenRig = Callable[..., Awaitable[Rig]]
PODS = ["fleetbus.events.*.core.pods.>"]
BOTH = ["fleetbus.events.*.apps.deployments.>", *PODS]
NAME = "copier"


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.intake.binding.CHECK_EVERY", timedelta(milliseconds=50))
    monkeypatch.setattr("fleetbus.intake.binding.PAUSE", timedelta(milliseconds=20))


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with connected(nats_url, name="test") as client:
        await ensure_stream(client)
        await ensure_bucket(client)
        await ensure_consumer(client, PROJECTOR, list(STREAM_SUBJECTS))
        yield client


async def served(bus: Bus) -> Registration:
    kv = KeyValue(bus)
    await apply_registration(bus, kv, NAME)
    registration = await read_registration(kv, NAME)
    assert registration is not None
    return registration


async def filters_of(bus: Bus, durable: str) -> list[str] | None:
    info = await consumer_info(bus, durable)
    return None if info is None else sorted(info["config"]["filter_subjects"])


async def publish(bus: Bus, *names: str) -> None:
    for version, name in enumerate(names, 1):
        event = Source().added(name, version)
        subject = event_subject("eu1", "core", "pods", "prod", name, event.verb)
        await bus.request(subject, codec.encode(event), headers=headers.build(event, MESSAGE_KEY))


def test_filters_are_sorted_and_name_no_subject_twice() -> None:
    pods, deployments = parse_resource("v1/pods"), parse_resource("apps/v1/deployments")
    assert filters_for([pods, deployments, pods]) == BOTH
    assert filters_for([pods, None]) == [EVENTS_ALL]


async def test_b12_a_registration_gets_a_durable_filtered_by_its_resources(bus: Bus) -> None:
    kv = KeyValue(bus)
    await register(kv, NAME, PODS)
    assert await registered_controllers(bus) == [NAME]
    registration = await served(bus)
    assert registration.durable == "copier-a"
    assert await filters_of(bus, "copier-a") == PODS
    # Registered again as after a restart: nothing changes.
    assert await register(kv, NAME, PODS) == registration
    assert await served(bus) == registration


async def test_b12_a_changed_watch_set_gets_the_other_durable_and_the_old_one_stays_until_synced(
    bus: Bus,
) -> None:
    kv = KeyValue(bus)
    await register(kv, NAME, PODS)
    await served(bus)
    await register(kv, NAME, BOTH)
    registration = await served(bus)
    assert (registration.durable, registration.previous) == ("copier-b", "copier-a")
    assert await filters_of(bus, "copier-b") == BOTH
    assert await served(bus) == registration
    assert await filters_of(bus, "copier-a") == PODS
    await report_synced(kv, NAME, "copier-a")  # a process of the older release: means nothing
    await served(bus)
    assert await filters_of(bus, "copier-a") == PODS
    await report_synced(kv, NAME, "copier-b")
    assert (await served(bus)).previous == ""
    assert await filters_of(bus, "copier-a") is None


async def test_b12_two_changes_before_the_first_is_served_spare_the_durable_in_use(
    bus: Bus,
) -> None:
    kv = KeyValue(bus)
    await register(kv, NAME, PODS)
    await served(bus)
    await register(kv, NAME, BOTH)
    await register(kv, NAME, [EVENTS_ALL])
    registration = await served(bus)
    assert (registration.durable, registration.previous) == ("copier-b", "copier-a")
    assert await filters_of(bus, "copier-a") == PODS


async def test_b12_after_the_loss_of_the_registration_the_durable_is_found_not_made_again(
    bus: Bus,
) -> None:
    kv = KeyValue(bus)
    await register(kv, NAME, PODS)
    await served(bus)
    await register(kv, NAME, BOTH)
    await served(bus)
    before = await consumer_info(bus, "copier-b")
    await kv.delete(kv_controller(NAME))
    await register(kv, NAME, BOTH)
    registration = await served(bus)
    assert (registration.durable, registration.previous) == ("copier-b", "copier-a")
    after = await consumer_info(bus, "copier-b")
    assert before is not None
    assert after is not None
    assert after["created"] == before["created"]


async def test_p12_a_durable_begins_where_the_projector_has_applied_everything(bus: Bus) -> None:
    await publish(bus, "a", "b", "c")

    async def one_only(deliveries: Sequence[Delivery]) -> None:
        if deliveries[0].sequence > 1:
            await asyncio.Event().wait()

    consumer = Consumer(bus, stream=STREAM, durable=PROJECTOR, handle=one_only)
    batch_of_one = pytest.MonkeyPatch()
    batch_of_one.setattr("fleetbus.bus.buffer.BATCH", 1)
    task = asyncio.create_task(consumer.run())
    try:

        async def is_behind() -> bool:
            info = await consumer_info(bus, PROJECTOR)
            return info is not None and info["ack_floor"]["stream_seq"] == 1

        await eventually(is_behind)
        await register(KeyValue(bus), NAME, PODS)
        await served(bus)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        batch_of_one.undo()
    info = await consumer_info(bus, "copier-a")
    assert info is not None
    assert info["num_pending"] == 2  # b and c: a full enqueue might not find them yet


async def test_p12_a_new_durable_of_an_idle_fleet_has_nothing_to_deliver(bus: Bus) -> None:
    await publish(bus, "a", "b")

    async def take(_deliveries: Sequence[Delivery]) -> None:
        return

    task = asyncio.create_task(Consumer(bus, stream=STREAM, durable=PROJECTOR, handle=take).run())

    async def is_through() -> bool:
        info = await consumer_info(bus, PROJECTOR)
        return info is not None and info["ack_floor"]["stream_seq"] == 2

    await eventually(is_through)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await register(KeyValue(bus), NAME, PODS)
    await served(bus)
    info = await consumer_info(bus, "copier-a")
    assert info is not None
    assert info["num_pending"] == 0


async def test_a_durable_of_the_whole_stream_has_no_filter(bus: Bus) -> None:
    """NATS takes many times as long to read a backlog for a consumer with several filters."""
    info = await consumer_info(bus, PROJECTOR)
    assert info is not None
    assert not {"filter_subject", "filter_subjects"} & info["config"].keys()
    await ensure_consumer(bus, PROJECTOR, list(STREAM_SUBJECTS))


async def test_b12_a_durable_with_another_configuration_is_refused_and_not_changed(
    bus: Bus,
) -> None:
    config = {
        "durable_name": "drifted",
        "ack_policy": "explicit",
        "filter_subjects": PODS,
        "max_deliver": 3,
    }
    body = {"stream_name": STREAM, "config": config, "action": "create"}
    await call_jetstream(bus, f"CONSUMER.CREATE.{STREAM}.drifted", body)
    with pytest.raises(BusError, match=r"consumer drifted: field .* is needed"):
        await ensure_consumer(bus, "drifted", PODS)
    info = await consumer_info(bus, "drifted")
    assert info is not None
    assert info["config"]["max_deliver"] == 3


async def test_b12_the_limit_of_the_projector_follows_the_number_of_shards_and_nothing_is_forgotten(
    bus: Bus,
) -> None:
    await ensure_consumer(bus, "sharded", PODS, start=7, shards=4)
    before = await consumer_info(bus, "sharded")
    await ensure_consumer(bus, "sharded", PODS, shards=2)
    after = await consumer_info(bus, "sharded")
    assert before is not None
    assert after is not None
    assert before["config"].pop("max_ack_pending") == 2 * after["config"].pop("max_ack_pending")
    assert after["config"] == before["config"]
    assert (after["created"], after["ack_floor"]) == (before["created"], before["ack_floor"])


async def test_an_unreadable_registration_is_as_good_as_none_and_is_written_again(
    bus: Bus,
) -> None:
    kv = KeyValue(bus)
    await kv.put(kv_controller(NAME), b"\xff")
    await apply_registration(bus, kv, NAME)
    assert await read_registration(kv, NAME) is None
    await register(kv, NAME, PODS)
    assert (await served(bus)).durable == "copier-a"


# --- binding ----------------------------------------------------------------------------------


def binding(bus: Bus, filters: list[str]) -> Binding:
    return Binding(bus, KeyValue(bus), controller=NAME, filters=filters, beat=lambda: None)


@asynccontextmanager
async def serving(bus: Bus) -> AsyncGenerator[None]:
    """The projector's part, all the time."""

    async def serve() -> None:
        while True:
            with contextlib.suppress(BusError):
                await apply_registration(bus, KeyValue(bus), NAME)
            await asyncio.sleep(0.02)  # the pace of the projector

    task = asyncio.create_task(serve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def within(step: Awaitable[Any]) -> Any:
    async with asyncio.timeout(15):
        return await step


async def test_b12_a_process_binds_only_a_durable_of_its_own_watch_set(bus: Bus) -> None:
    async with serving(bus):
        assert await within(binding(bus, PODS).bind()) == "copier-a"
        assert await within(binding(bus, BOTH).bind()) == "copier-b"


async def test_b12_a_registration_that_vanished_is_written_again(bus: Bus) -> None:
    async with serving(bus):
        bound = binding(bus, PODS)
        durable = await within(bound.bind())
        await KeyValue(bus).delete(kv_controller(NAME))
        losing = asyncio.create_task(bound.lost(durable))

        async def is_back() -> bool:
            registration = await read_registration(KeyValue(bus), NAME)
            return registration is not None and registration.durable == durable

        await eventually(is_back)
        losing.cancel()
        await asyncio.gather(losing, return_exceptions=True)


async def test_b12_another_release_keeps_the_stream_as_long_as_it_pulls(bus: Bus) -> None:
    async def take(_deliveries: Sequence[Delivery]) -> None:
        return

    async with serving(bus):
        bound = binding(bus, PODS)
        durable = await within(bound.bind())
        other = await within(binding(bus, BOTH).bind())
        pulling = asyncio.create_task(
            Consumer(bus, stream=STREAM, durable=other, handle=take).run()
        )

        async def is_pulled() -> bool:
            info = await consumer_info(bus, other)
            return info is not None and info["num_waiting"] > 0

        await eventually(is_pulled)
        losing = asyncio.create_task(bound.lost(durable))

        async def filters() -> object:
            registration = await read_registration(KeyValue(bus), NAME)
            return registration and registration.filters

        await stays(BOTH, filters, timedelta(seconds=0.4))
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)

        async def is_taken_back() -> bool:
            found = await read_registration(KeyValue(bus), NAME)
            return found is not None and found.filters == PODS

        await eventually(is_taken_back)
        losing.cancel()
        await asyncio.gather(losing, return_exceptions=True)


# --- a whole fleet ----------------------------------------------------------------------------


async def test_b12_a_controller_goes_on_after_its_durable_and_registration_were_lost(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetbus.worker.initial_sync.CHECK_EVERY", timedelta(milliseconds=100))
    rig = await open_rig("a")
    rig.reconciler_timing = ReconcilerTiming(checks=timedelta(milliseconds=300))
    controller = Controller("watcher-of-pods")
    controller.watch("v1/pods")
    recorder = Recorder(controller, "v1/pods")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await rig.synced("core/pods")
    await rig.quiet("watcher-of-pods")
    async with connected(rig.shared.nats_url, name="test") as bus:
        await call_jetstream(bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
        await delete_consumer(bus, "watcher-of-pods-a")
        rig.clusters["a"].create("v1/pods", pod("late"), "default")
        await eventually(lambda: recorder.of("a", "default", "late"), within=timedelta(seconds=20))
