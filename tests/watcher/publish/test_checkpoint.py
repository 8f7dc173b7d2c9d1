"""Restarts, crashes, and a bus that stalls: rules W3, W5, W14, W21, W23, B4, B6."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_emulator.apiserver import Fail
from fleetbus_proto.events import Event
from fleetbus_proto.versions import is_newer
from support.eventually import eventually
from support.hostile.chaos_proxy import chaos_link
from support.processes.watcher import process
from support.rigs.watcher import Rig, rig_for


async def test_w5_a_restart_from_a_checkpoint_lists_nothing_and_misses_nothing(rig: Rig):
    rig.write("a")
    async with rig.watching():
        rig.write("b")
        await eventually(rig.is_mirrored)
    rig.write("a", "changed")
    rig.remove("b")
    rig.write("c")
    rig.start()
    await eventually(rig.is_mirrored)
    assert len(rig.requests("list")) == 1
    assert len(await rig.ends()) == 1


async def test_w4_w7_nothing_is_checkpointed_before_the_epoch_has_ended(rig: Rig):
    for number in range(3):
        rig.write(f"a{number}")
    rule = rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps", skip=1)
    rig.start(page_size=1, backoff_cap=timedelta(milliseconds=50))
    await eventually(lambda: rule.hits >= 3)
    await eventually(lambda: _is_failing(rig))
    assert await rig.checkpoint() is None
    rule.remove()
    record = await eventually(rig.checkpoint)
    end = (await rig.ends())[0]
    assert record["rank"] == {"resourceVersion": end.epoch.resource_version, "id": end.epoch.id}


@pytest.mark.parametrize(
    "damage",
    [
        None,
        "garbage",
        {"transform": "0"},
        {"format": 99},
        {"version": "v0"},
        {"resourceVersion": "0x1"},
        {"incarnation": {"number": 1, "uid": "another"}},
    ],
    ids=["deleted", "corrupt", "transform", "format", "served", "version", "incarnation"],
)
async def test_w5_a_checkpoint_in_doubt_costs_an_epoch_and_is_written_anew(
    rig: Rig, damage: dict[str, Any] | str | None
):
    rig.write("a")
    async with rig.watching():
        record = await eventually(rig.checkpoint)
    key = "alpha.checkpoint.core.configmaps.all"
    if damage is None:
        await rig.kv.delete(key)
    else:
        value = damage if isinstance(damage, str) else json.dumps(record | damage)
        await rig.kv.put(key, value.encode())
    async with rig.watching():
        assert len(await rig.ends()) == 2
        await eventually(lambda: _is_recorded(rig, record["incarnation"]))
    assert await rig.is_mirrored()


async def test_w5_a_checkpoint_that_was_rolled_back_repeats_and_then_moves_forward(rig: Rig):
    rig.write("a")
    async with rig.watching():
        old = await eventually(rig.checkpoint)
        rig.write("a", "b")
        await eventually(lambda: _is_past(rig, old["resourceVersion"]))
    key = "alpha.checkpoint.core.configmaps.all"
    await rig.kv.put(key, json.dumps(old).encode())
    rig.start()
    await eventually(lambda: _is_past(rig, old["resourceVersion"]))
    live = [e.resource_version for e in await rig.events()]
    assert len(live) == len(set(live)), "a repeat inside the window is stored once (B3)"


async def test_w10_an_answer_that_comes_after_a_heartbeat_was_sent_is_recorded_soon(rig: Rig):
    """Also when nothing follows: a restart would repeat what is stored long since."""
    async with (
        chaos_link(int(rig.nats_url.rpartition(":")[2])) as link,
        rig.watching(nats_url=link.url, heartbeat_idle=timedelta(hours=1)),
    ):
        old = await eventually(rig.checkpoint)
        before = len(await rig.heartbeats())
        link.hold(up=False)  # what it publishes is stored, and it does not learn that
        rig.write("a")
        await eventually(lambda: _beats(rig, before + 1))
        link.heal()
        await eventually(lambda: _is_past(rig, old["resourceVersion"]))


async def test_w5_a_checkpoint_never_moves_back(rig: Rig):
    rig.write("a")
    async with rig.watching():
        record = await eventually(rig.checkpoint)
        far = record | {"resourceVersion": record["resourceVersion"] + "000"}
        await rig.kv.put("alpha.checkpoint.core.configmaps.all", json.dumps(far).encode())
        before = len(await rig.heartbeats())
        for number in range(3):
            rig.write("a", f"{number}")
            await eventually(lambda n=number: _beats(rig, before + 1 + n))
        assert await rig.checkpoint() == far


async def test_w23_a_lost_bucket_costs_a_new_number_and_a_new_epoch(rig: Rig):
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
        first = (await rig.ends())[0].incarnation
        await rig.kv.delete("alpha.incarnation")
        rig.write("b")  # the next heartbeat notices
        await eventually(lambda: _has_ends(rig, 2))
        second = (await rig.ends())[1].incarnation
    assert second.number > first.number
    assert second.uid == first.uid


async def test_w23_a_number_that_the_projector_has_seen_is_never_undercut(rig: Rig):
    number = int(time.time() * 1000) + 10_000_000
    request = {"minEpoch": 1, "incarnation": number}
    await rig.kv.put("_hub.alpha.resync.core.configmaps", json.dumps(request).encode())
    async with rig.watching():
        assert (await rig.ends())[0].incarnation.number == number + 1


@pytest.mark.full  # CI runs the cut of `make faults`
async def test_w3_kill_9_at_any_moment_loses_nothing_and_no_checkpoint_is_ahead(
    nats_url: str, tmp_path: Path
):
    random = Random(os.environ.get("FLEETBUS_SEED", "w3"))
    async with rig_for(nats_url) as rig:
        writer = asyncio.create_task(_write_for_ever(rig, random))
        try:
            for _ in range(3):
                async with process(rig, tmp_path, nats_url) as child:
                    before = len(rig.cluster.requests)
                    await eventually(
                        lambda n=before: len(rig.cluster.requests) > n, timedelta(seconds=20)
                    )
                    await asyncio.sleep(random.uniform(0.0, 0.4))  # killed at any time
                    child.kill()
                    await child.wait()
                await _assert_checkpoint_is_covered(rig)
        finally:
            writer.cancel()
        rig.start(replica="last")
        await eventually(lambda: _is_watching(rig, "last"), timedelta(seconds=20))
        await eventually(rig.is_mirrored, timedelta(seconds=20))
        await _assert_every_deletion_was_reported(rig)


@pytest.mark.slow
async def test_w21_sigterm_flushes_and_records_so_that_nothing_is_repeated(
    rig: Rig, nats_url: str, tmp_path: Path
):
    for number in range(200):
        rig.write(f"a{number}")
    async with process(rig, tmp_path, nats_url, FLEETBUS_WATCHER_HEARTBEAT_BUSY="1h") as child:
        await eventually(rig.ends, timedelta(seconds=20))
        for number in range(200):
            rig.write(f"a{number}", "changed")
        await eventually(lambda: _has_live(rig, 50))
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
    record = await rig.checkpoint()
    assert record is not None
    live = [e for e in await rig.events() if e.verb == "modified"]
    assert record["resourceVersion"] >= live[-1].resource_version
    async with process(rig, tmp_path, nats_url):
        await eventually(rig.is_mirrored, timedelta(seconds=20))
    assert len(rig.requests("list")) == 1


async def test_w21_b14_a_stop_whose_drain_failed_waits_for_no_heartbeat_as_well(tmp_path: Path):
    rare: dict[str, Any] = {
        "heartbeat_busy": timedelta(hours=1),
        "heartbeat_idle": timedelta(hours=1),
    }
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        rig_for(server.url) as rig,
    ):
        task = rig.start(stop_patience=timedelta(seconds=0.2), **rare)
        await eventually(lambda: _is_watching(rig, "r1"))
        before = len(await rig.heartbeats())
        server.process.send_signal(signal.SIGSTOP)
        try:
            sent = _sent()
            rig.write("a")
            await eventually(lambda: _sent() > sent)  # on its way, and not acknowledged
            await rig.stop(task)
        finally:
            server.process.send_signal(signal.SIGCONT)
        await eventually(rig.is_mirrored)
        assert len(await rig.heartbeats()) == before


@pytest.mark.slow
async def test_w14_b14_a_stalled_bus_stops_the_reader_and_costs_no_memory(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        rig_for(server.url, event_capacity=100_000) as rig,
        process(rig, tmp_path, server.url) as child,
    ):
        await eventually(rig.ends, timedelta(seconds=20))
        for number in range(500):
            rig.write(f"a{number}", "x" * 4000)
        await eventually(rig.is_mirrored, timedelta(seconds=20))
        before = _rss_mb(child.pid)
        server.process.send_signal(signal.SIGSTOP)
        try:
            for number in range(3000):  # 48 MB of changes
                rig.write(f"a{number % 500}", f"{number}" + "x" * 16_000)
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(1)  # it reads what it can
            grown = _rss_mb(child.pid) - before
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert grown < 30, f"{grown} MB"
        await eventually(rig.is_mirrored, timedelta(seconds=30))


async def test_b6_a_bus_that_restarts_loses_no_event(tmp_path: Path):
    async with (
        nats_server(store_dir=tmp_path / "nats") as server,
        rig_for(server.url) as rig,
        rig.watching(),
    ):
        await eventually(rig.checkpoint)  # where it goes on
        for number in range(3):
            await _restart_under_load(server, rig, number)
        await eventually(rig.is_mirrored, timedelta(seconds=20))
        published = {(e.name, e.resource_version) for e in await rig.events()}
        for commit in rig.cluster.history:
            if commit.resource == "configmaps":
                assert (commit.name, str(commit.rv)) in published
        assert len(rig.requests("list")) == 1


# --- what the tests above share ---------------------------------------------------------------


async def _write_for_ever(rig: Rig, random: Random) -> None:
    number = 0
    while True:
        number += 1
        name = f"a{random.randrange(20)}"
        if number % 7 == 0 and name in rig.truth():
            rig.remove(name)
        else:
            rig.write(name, str(number))
        await asyncio.sleep(0.003)  # the pace of the load


async def _assert_checkpoint_is_covered(rig: Rig) -> None:
    """Every change up to the checkpoint is on the stream, as an event or as a newer one."""
    record = await rig.checkpoint()
    if record is None:
        return
    newest: dict[str, str] = {}
    for event in await rig.events():
        if is_newer(event.resource_version, newest.get(event.name, "")):
            newest[event.name] = event.resource_version
    for end in await rig.ends():  # what a complete list did not hold was gone by then
        for name in {c.name for c in rig.cluster.history}:
            if is_newer(end.epoch.resource_version, newest.get(name, "")):
                newest[name] = end.epoch.resource_version
    for commit in rig.cluster.history:
        is_covered = not is_newer(str(commit.rv), record["resourceVersion"])
        if commit.resource == "configmaps" and is_covered:
            assert not is_newer(str(commit.rv), newest.get(commit.name, "")), commit


async def _assert_every_deletion_was_reported(rig: Rig) -> None:
    """After the first epoch's list each deletion is an event: no watch left a gap."""
    first = (await rig.ends())[0].epoch.resource_version
    published = {(e.name, e.resource_version) for e in await rig.events() if e.verb == "deleted"}
    lists = [end.epoch.resource_version for end in await rig.ends()]
    for commit in rig.cluster.history:
        if commit.resource == "configmaps" and commit.type == "DELETED":
            version = str(commit.rv)
            swept = any(not is_newer(version, rv) for rv in lists[1:])
            if is_newer(version, first) and not swept:
                assert (commit.name, version) in published


async def _restart_under_load(server: NatsServer, rig: Rig, turn: int) -> None:
    server.kill()
    for number in range(20):
        rig.write(f"a{number}", f"{turn}")
    await asyncio.sleep(0.05)  # the watcher reads them meanwhile
    await server.restart()
    for number in range(20):
        rig.write(f"b{number}", f"{turn}")
    await eventually(lambda: rig.bus.is_connected)


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _sent() -> float:
    labels = {"cluster": "alpha", "resource": "core/configmaps"}
    return REGISTRY.get_sample_value("fleetbus_watcher_events_total", labels) or 0.0


async def _beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


async def _is_watching(rig: Rig, replica: str) -> bool:
    beats = [beat for beat in await rig.heartbeats() if beat.replica == replica]
    return bool(beats) and any(status.state == "watching" for status in beats[-1].resources)


async def _is_failing(rig: Rig) -> bool:
    status = await rig.status()
    return status is not None and status.state == "failing"


async def _has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def _has_live(rig: Rig, number: int) -> bool:
    messages = [m.message for m in await rig.stored()]
    return sum(isinstance(m, Event) and m.verb == "modified" for m in messages) >= number


async def _is_recorded(rig: Rig, incarnation: dict[str, Any]) -> bool:
    record = await rig.checkpoint()
    return record is not None and record.get("incarnation") == incarnation


async def _is_past(rig: Rig, version: str) -> bool:
    record = await rig.checkpoint()
    return record is not None and is_newer(record["resourceVersion"], version)
