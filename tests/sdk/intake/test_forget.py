"""A controller that has gone for good leaves nothing behind, and may come back as a new one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from fleetbus.bus.connection import Bus, connected
from fleetbus.bus.durables import consumer_info
from fleetbus.bus.jetstream import stream_info
from fleetbus.bus.key_value import KeyValue
from fleetbus.bus.reader_groups import (
    ControllerRunning,
    ReaderGroup,
    Selection,
    durables_of,
    mark_removed,
    read_groups,
    read_registration,
    register,
)
from fleetbus.controller.controller import Controller
from fleetbus_cli.queue.forget import forget_controller
from fleetbus_proto import keys
from support.eventually import eventually
from support.objects import pod
from support.processes.programs import installed
from support.rigs.fleet import Recorder, Rig
from support.rigs.reader_groups import serve

OpenRig = Callable[..., Awaitable[Rig]]
PODS = "v1/pods"
NAME = "pods"
SOON = timedelta(seconds=10)


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetbus.intake.binding.CHECK_EVERY", timedelta(milliseconds=100))
    monkeypatch.setattr("fleetbus.bus.durables.CHECK_EVERY", timedelta(milliseconds=10))


def recording(name: str = NAME) -> tuple[Controller, Recorder]:
    controller = Controller(name)
    controller.watch(PODS)
    return controller, Recorder(controller, PODS)


async def running(open_rig: OpenRig) -> Rig:
    """A fleet whose controller has seen the only object."""
    rig = await open_rig("a", resources=(PODS,))
    controller, recorder = recording()
    rig.clusters["a"].create(PODS, pod("p"), "default")
    rig.start_reconciler(controller)
    rig.start_watcher("a")
    await eventually(recorder.keys, SOON)
    return rig


async def traces_of(rig: Rig, bus: Bus, name: str) -> list[str]:
    """The keys and durables of a controller on bus and store."""
    found = await durables_of(bus, name, only_its_own=True)
    found += [str(key) for key in await rig.redis.keys(keys.queue(name, "*"))]
    for stored in await read_groups(bus):
        member = stored.members.get(name)
        if member and not (member.registration.is_removed or member.registration.gone_at):
            found.append("registration")
    return found


async def test_all_of_a_controller_goes_and_it_comes_back_as_a_new_one(open_rig: OpenRig) -> None:
    rig = await open_rig("a", resources=(PODS,))
    controller, recorder = recording()
    other, others = recording("other")
    rig.clusters["a"].create(PODS, pod("p"), "default")
    rig.start_reconciler(controller, other)
    rig.start_watcher("a")
    await eventually(lambda: recorder.keys() and others.keys(), SOON)
    async with connected(rig.shared.nats_url, name="test") as bus:
        with pytest.raises(ControllerRunning, match="a process of controller pods is running"):
            await forget_controller(bus, rig.redis, NAME, within=SOON)
        assert len(await traces_of(rig, bus, NAME)) > 3
        await rig.stop_reconciler()
        rig.start_reconciler(other)
        forgotten = await forget_controller(bus, rig.redis, NAME, within=SOON)
        assert forgotten.was_registered
        assert not forgotten.has_durables
        assert forgotten.keys > 2
        assert await traces_of(rig, bus, NAME) == []
        assert len(await traces_of(rig, bus, "other")) > 3
        again = await forget_controller(bus, rig.redis, NAME, within=SOON)
        assert again.is_nothing
    await rig.stop_reconciler()
    recorder.runs.clear()
    rig.start_reconciler(controller, other)
    await eventually(lambda: len(recorder.of("a", "default", "p")) == 1, SOON)


async def test_b12_without_a_projector_its_durables_go_later(open_rig: OpenRig) -> None:
    rig = await running(open_rig)
    await rig.stop_reconciler()
    async with connected(rig.shared.nats_url, name="test") as bus:
        forgotten = await forget_controller(bus, rig.redis, NAME, within=timedelta(milliseconds=50))
        assert forgotten.has_durables
        rig.start_reconciler()

        async def is_gone() -> bool:
            return await traces_of(rig, bus, NAME) == []

        await eventually(is_gone, SOON)


async def test_b12_one_that_registers_again_before_the_projector_looks_stays(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(PODS,))
    rig.start_reconciler()
    group = ReaderGroup({NAME: Selection(["fleetbus.events.*.core.pods.>"])})
    async with connected(rig.shared.nats_url, name="test") as bus:
        kv = KeyValue(bus)
        await eventually(lambda: stream_info(bus, f"KV_{keys.KV_BUCKET}"), SOON)

        async def is_registered() -> bool:
            await register(kv, group)
            found = await read_registration(kv, group)
            return found is not None and found.is_created

        await eventually(is_registered, SOON)
        await rig.stop_reconciler()
        assert await mark_removed(bus, NAME)
        assert await read_registration(kv, group) is None
        fresh = await register(kv, group)
        assert not fresh.is_removed
        await serve(bus)
        found = await read_registration(kv, group)
        assert found is not None
        assert await consumer_info(bus, found.durable)


@pytest.mark.full  # it waits for 10 s, until the worker counts as gone
async def test_the_command_forgets_and_prints(open_rig: OpenRig) -> None:
    rig = await running(open_rig)
    assert await forget(rig, NAME) == (
        1,
        "",
        "fleetbus: a process of controller pods is running: stop it first\n",
    )
    await rig.stop_reconciler()
    rig.start_reconciler()
    status, out, error = await forget(rig, NAME)
    assert (status, error) == (0, "")
    assert out.startswith("forgot pods: deleted its registration, queue and record (")
    status, _, error = await forget(rig, NAME)
    message = "fleetbus: there is no controller 'pods'; known: none\n"
    assert (status, error) == (1, message)
    await rig.redis.set(keys.queue("pods2", "clock"), 1)
    status, _, error = await forget(rig, "pod2")
    message = "fleetbus: there is no controller 'pod2'; did you mean 'pods2'?\n"
    assert (status, error) == (1, message)
    status, _, error = await forget(rig)
    assert status == 2
    assert "`fleetbus queue forget CONTROLLER`" in error


async def forget(rig: Rig, *words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *installed("fleetbus", "queue", "forget", *words),
        env={
            **os.environ,
            "FLEETBUS_NATS_URL": rig.shared.nats_url,
            "FLEETBUS_REDIS_URL": rig.shared.redis_url,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()
