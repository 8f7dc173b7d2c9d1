"""A process finds the durable of its reader group, also after a loss (rule B12)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durables import consumer_info, delete_consumer
from fleetbus.bus.jetstream import call_jetstream
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import (
    BoundDurable,
    ReaderGroup,
    report_synced,
)
from fleetbus.controller.controller import Controller
from fleetbus.errors import BusError
from fleetbus.intake.binding import Binding
from fleetbus_proto.keys import KV_BUCKET, kv_reader
from fleetbus_reconciler.timing import ReconcilerTiming
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig
from support.rigs.reader_groups import (
    PODS,
    group_of,
    open_bus,
    reading,
    serve,
)

OpenRig = Callable[..., Awaitable[Rig]]


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.intake.binding.CHECK_EVERY", timedelta(milliseconds=50))
    monkeypatch.setattr("fleetbus.intake.binding.PAUSE", timedelta(milliseconds=20))
    monkeypatch.setattr("fleetbus.bus.durables.CHECK_EVERY", timedelta(milliseconds=5))


@pytest.fixture
async def bus(nats_url: str) -> AsyncGenerator[Bus]:
    async with open_bus(nats_url) as made:
        yield made


# --- binding --------------------------------------------------------------------------------------


class Bound(Binding):
    """The binding of one process, and its durable."""

    def __init__(self, bus: Bus, group: ReaderGroup) -> None:
        self.durable = BoundDurable()
        super().__init__(bus, KeyValue(bus), group, durable=self.durable, beat=lambda: None)


@asynccontextmanager
async def serving(bus: Bus) -> AsyncGenerator[None]:
    """The projector's part, all the time."""

    async def serve_all() -> None:
        while True:
            with contextlib.suppress(BusError):
                await serve(bus)
            await asyncio.sleep(0.02)  # the pace of the projector

    task = asyncio.create_task(serve_all())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def within(step: Awaitable[Any]) -> Any:
    async with asyncio.timeout(15):
        return await step


async def test_b12_a_process_binds_only_the_durable_of_its_own_group(bus: Bus) -> None:
    async with serving(bus):
        assert await within(Bound(bus, group_of(copier=PODS)).bind()) == "copier-1"
        assert await within(Bound(bus, group_of(copier=PODS, b=PODS)).bind()) == "b-1"
        assert await within(Bound(bus, group_of(copier=PODS)).bind()) == "copier-1"


async def test_b12_a_registration_that_vanished_is_written_again(bus: Bus) -> None:
    group = group_of(copier=PODS)
    async with serving(bus):
        ours = Bound(bus, group)
        durable = await within(ours.bind())
        await KeyValue(bus).delete(kv_reader("copier", group.id))
        await within(ours.lost())
        assert await within(ours.bind()) == durable


async def test_b12_any_registration_of_a_group_that_vanishes_alone_is_written_again(
    bus: Bus,
) -> None:
    """A projector that forgets a group as it comes back deletes some of them."""
    group = group_of(copier=PODS, scaler=PODS)
    ours = Bound(bus, group)
    binding = asyncio.create_task(ours.bind())
    key = kv_reader("scaler", group.id)
    await eventually(lambda: KeyValue(bus).get(kv_reader("copier", group.id)))
    await KeyValue(bus).delete(key)
    async with serving(bus):
        assert await within(binding) == "copier-1"
        await KeyValue(bus).delete(key)
        await delete_consumer(bus, "copier-1")
        await within(ours.lost())
        assert await within(ours.bind()) == "copier-1"


async def test_b12_a_process_whose_durable_has_gone_registers_again(bus: Bus) -> None:
    """It slept; what it had is read by the processes of another release meanwhile."""
    old, new = group_of("old", copier=PODS), group_of("new", copier=PODS)
    ours = Bound(bus, old)
    async with serving(bus):
        await within(ours.bind())
        await report_synced(KeyValue(bus), old, "copier", ours.durable.created)
        theirs = Bound(bus, new)
        await within(theirs.bind())
        async with reading(bus, theirs.durable.name):
            await report_synced(KeyValue(bus), new, "copier", theirs.durable.created)
            await eventually(lambda: is_absent(bus, ours.durable.name))
            before = ours.durable.created
            await within(ours.lost())
            await within(ours.bind())
            assert ours.durable.created not in {before, ""}


async def is_absent(bus: Bus, durable: str) -> bool:
    return await consumer_info(bus, durable) is None


# --- a whole fleet ----------------------------------------------------------------------------


@pytest.mark.slow
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
        await delete_consumer(bus, "watcher-of-pods-1")
        rig.clusters["a"].create("v1/pods", pod("late"), "default")
        await eventually(lambda: recorder.of("a", "default", "late"), within=timedelta(seconds=20))
