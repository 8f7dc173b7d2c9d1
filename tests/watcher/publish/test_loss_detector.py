"""The bus lost what it had stored, and the watcher notices by itself: rules W9, W10."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.jetstream import ensure_bucket, ensure_stream
from fleetbus.bus.key_value import KeyValue
from fleetbus.process.clock import utc_now
from fleetbus_devfleet.processes.servers import NatsServer, nats_server
from fleetbus_emulator.apiserver import Hang
from fleetbus_proto import codec
from fleetbus_proto.events import Heartbeat, Incarnation
from fleetbus_proto.keys import kv_checkpoint
from fleetbus_proto.subjects import STREAM, status_subject
from support.eventually import eventually
from support.rigs.watcher import Rig, rig_for

RARE: dict[str, Any] = {
    "heartbeat_busy": timedelta(hours=1),
    "heartbeat_idle": timedelta(hours=1),
}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[NatsServer]:
    """A NATS that a test may break."""
    async with nats_server(store_dir=tmp_path / "nats") as started:
        yield started


@pytest.fixture
async def own(server: NatsServer) -> AsyncGenerator[Rig]:
    async with rig_for(server.url) as opened:
        yield opened


def alarms(alarm: str = "events_lost") -> float:
    labels = {"cluster": "alpha", "alarm": alarm}
    return REGISTRY.get_sample_value("fleetbus_watcher_alarms_total", labels) or 0.0


async def numbers(rig: Rig) -> list[int]:
    """The incarnation numbers of the epochs on the stream, in order."""
    return [end.incarnation.number for end in await rig.ends()]


async def stored_beats(rig: Rig, replica: str = "r1") -> list[tuple[int, int]]:
    """Sequence of each heartbeat, and of the one that it expected before it."""
    found = [
        stored
        for stored in await rig.stored()
        if isinstance(stored.message, Heartbeat) and stored.message.replica == replica
    ]
    header = "Nats-Expected-Last-Subject-Sequence"
    return [(stored.seq, int(stored.headers.get(header, -1))) for stored in found]


async def last_beat(rig: Rig, replica: str = "r1") -> int:
    return max((seq for seq, _ in await stored_beats(rig, replica)), default=0)


async def leave_a_heartbeat(rig: Rig, named: str = "r1") -> int:
    """Write what a process leaves that dies before its heartbeat is acknowledged."""
    beat = Heartbeat(
        cluster="alpha",
        replica=named,
        boot="dead",
        incarnation=Incarnation(1, "u"),
        connected=True,
        resources=[],
        observed_at=utc_now(),
    )
    answer = await rig.bus.request(status_subject("alpha", "r1"), codec.encode(beat))
    return int(json.loads(answer.data)["seq"])


async def push_sequences(rig: Rig, until: int) -> None:
    """Let another publisher pass the old end of the stream."""
    seq = 0
    while seq <= until:
        answer = await rig.bus.request("fleetbus.status.beta.x", b"")
        seq = int(json.loads(answer.data)["seq"])


async def wipe_stream(rig: Rig) -> None:
    await rig.bus.request(f"$JS.API.STREAM.DELETE.{STREAM}")
    await ensure_stream(rig.bus)


async def copy_store(server: NatsServer, rig: Rig, into: Path) -> None:
    await server.stop()
    await asyncio.to_thread(shutil.copytree, server.store_dir, into)
    await server.restart()
    await eventually(lambda: rig.bus.is_connected)


async def copy_running(server: NatsServer, into: Path) -> None:
    """Cut nobody off for it: a watcher that was reports it in a heartbeat, after the copy."""
    server.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.to_thread(shutil.copytree, server.store_dir, into)
    finally:
        server.process.send_signal(signal.SIGCONT)


async def set_back(server: NatsServer, rig: Rig, copy: Path) -> None:
    server.kill()
    await asyncio.to_thread(shutil.rmtree, server.store_dir)
    await asyncio.to_thread(shutil.copytree, copy, server.store_dir)
    await server.restart()
    await eventually(lambda: rig.bus.is_connected)


async def published(rig: Rig) -> set[tuple[str, str]]:
    return {(event.name, event.resource_version) for event in await rig.events()}


async def beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


# --- loss detection ---------------------------------------------------------------------------


async def test_w9_each_heartbeat_expects_the_one_before_it(rig: Rig):
    async with rig.watching():
        for number in range(3):
            count = len(await rig.heartbeats())
            rig.write("a", str(number))
            await eventually(lambda n=count: beats(rig, n + 1))
    found = await stored_beats(rig)
    assert [expected for _, expected in found] == [0, *[seq for seq, _ in found[:-1]]]


async def test_w9_a_stream_that_was_wiped_is_noticed_and_filled_again(rig: Rig):
    for name in ("a", "b"):
        rig.write(name)
    before = alarms()
    async with rig.watching():
        await eventually(rig.checkpoint)
        (first,) = await numbers(rig)
        await wipe_stream(rig)
        rig.write("c")  # the next heartbeat notices
        await eventually(rig.is_mirrored)
        await eventually(lambda: numbers(rig))
        assert (await numbers(rig))[0] > first
    assert alarms() == before + 1


async def test_w9_other_publishers_cannot_hide_that_the_stream_was_wiped(rig: Rig):
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
        (first,) = await numbers(rig)
        seq = await last_beat(rig)
        await wipe_stream(rig)
        await push_sequences(rig, seq + 10)
        rig.write("b")
        await eventually(rig.is_mirrored)
        await eventually(lambda: numbers(rig))  # an end follows its objects
        assert (await numbers(rig))[0] > first


@pytest.mark.slow
async def test_w9_w10_a_bus_set_back_to_an_older_copy_gets_everything_again(
    own: Rig, server: NatsServer, tmp_path: Path
):
    rig = own
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
        (first,) = await numbers(rig)
        await copy_store(server, rig, tmp_path / "copy")
        rig.write("b")
        rig.remove("a")
        seq = await last_beat(rig)
        await eventually(lambda: _is_beyond(rig, seq))
        await set_back(server, rig, tmp_path / "copy")
        await push_sequences(rig, await last_beat(rig) + 20)
        await eventually(rig.is_mirrored)
        await eventually(lambda: _has_number_above(rig, first))
    assert rig.truth().keys() == {"b"}


async def test_w10_what_was_stored_after_the_last_heartbeat_is_sent_again_without_a_list(
    own: Rig, server: NatsServer, tmp_path: Path
):
    """All heartbeats are there, but events after the last one are gone."""
    rig = own
    rig.write("a")
    async with rig.watching(**RARE):
        await eventually(rig.checkpoint)  # the heartbeat before it was the last one
        await copy_running(server, tmp_path / "copy")
        rig.write("a", "changed")
        rig.write("gone")
        rig.remove("gone")
        await eventually(rig.is_mirrored)
        before = await published(rig)
        await set_back(server, rig, tmp_path / "copy")
        await eventually(lambda: _has_reported(rig, before))
        assert len(rig.requests("list")) == 1
        assert len(set(await numbers(rig))) == 1


async def test_w10_an_epoch_that_runs_when_the_bus_goes_starts_again(own: Rig, server: NatsServer):
    rig = own
    for number in range(4):
        rig.write(f"a{number}")
    gate = rig.cluster.faults.add(Hang(), verb="list", resource="configmaps", skip=1)
    rig.start(page_size=2)
    await eventually(lambda: gate.hits)
    await server.restart()
    gate.remove()
    await eventually(lambda: rig.bus.is_connected)
    await eventually(lambda: rig.ends("configmaps"))
    assert await rig.is_mirrored()
    pages = [r for r in rig.requests("list") if "continue" not in r.query]
    assert len(pages) == 2


# --- at start ---------------------------------------------------------------------------------


async def test_w10_a_crash_between_heartbeat_and_checkpoint_costs_no_list(rig: Rig):
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
    left = await leave_a_heartbeat(rig)
    before = alarms()
    rig.start()
    rig.write("b")
    await eventually(rig.is_mirrored)
    await eventually(lambda: _is_beyond(rig, left))
    assert len(rig.requests("list")) == 1
    assert alarms() == before


async def test_w10_a_heartbeat_of_ours_without_an_answer_is_adopted(rig: Rig):
    async with rig.watching():
        await eventually(rig.checkpoint)
        before = alarms()
        left = await leave_a_heartbeat(rig)
        rig.write("a")
        await eventually(lambda: _is_beyond(rig, left))
        assert alarms() == before
        assert len(await rig.ends()) == 1


async def test_w10_a_heartbeat_that_names_another_replica_is_not_adopted(rig: Rig):
    async with rig.watching():
        await eventually(rig.checkpoint)
        before = alarms()
        await leave_a_heartbeat(rig, named="another")
        rig.write("a")
        await eventually(lambda: alarms() == before + 1)
        await eventually(lambda: _has_ends(rig, 2))


async def test_w10_a_new_replica_starts_at_0_and_trusts_a_checkpoint_that_is_covered(rig: Rig):
    rig.write("a")
    async with rig.watching(replica="r1"):
        await eventually(rig.checkpoint)
    rig.start(replica="r2")
    rig.write("b")
    await eventually(rig.is_mirrored)
    await eventually(lambda: last_beat(rig, "r2"))
    assert len(rig.requests("list")) == 1
    assert (await stored_beats(rig, "r2"))[0][1] == 0


@pytest.mark.parametrize("replica", ["r1", "r2"])
async def test_w10_a_checkpoint_whose_heartbeat_is_gone_is_not_trusted(rig: Rig, replica: str):
    rig.write("a")
    async with rig.watching(replica="r1"):
        await eventually(rig.checkpoint)
    (first,) = await numbers(rig)
    seq = await last_beat(rig)
    await wipe_stream(rig)
    await push_sequences(rig, seq + 20)
    before = alarms()
    rig.start(replica=replica)
    await eventually(lambda: _has_number_above(rig, first))
    assert await rig.is_mirrored()
    assert alarms() == before + 1


async def test_w10_a_heartbeat_that_aged_out_is_vouched_for_by_a_newer_one(rig: Rig):
    async with rig.watching(replica="r1"):
        record = await eventually(rig.checkpoint)
    record["heartbeat"]["seq"] = 1  # long gone; the same replica has sent more since
    key = kv_checkpoint("alpha", "core", "configmaps", "")
    await rig.kv.put(key, json.dumps(record).encode())
    before = alarms()
    for replica in ("r1", "r2"):
        task = rig.start(replica=replica)
        rig.write(replica)
        await eventually(rig.is_mirrored)
        await rig.stop(task)
    assert len(rig.requests("list")) == 1
    assert alarms() == before


async def test_w10_a_peer_that_has_only_just_started_vouches_for_nothing(
    rig: Rig,
):
    """Its heartbeat may be the first one after a loss that nobody has noticed yet.

    Or it crashes in a loop: then an alarm for each of its starts would list everything for ever.
    """
    rig.timing = replace(rig.timing, peer_verifies=timedelta(seconds=0.2))
    rig.write("a")
    async with rig.watching(replica="r1"):
        await eventually(rig.checkpoint)
    await leave_a_heartbeat(rig)
    before = alarms()
    async with rig.watching(replica="r2"):
        assert len(rig.requests("list")) == 2, "the checkpoint counts as none"
        assert await rig.is_mirrored()
    assert len(set(await numbers(rig))) == 1
    assert alarms() == before


# --- the number -------------------------------------------------------------------------------


async def test_w23_an_alarm_in_one_of_two_replicas_ends_in_one_number(rig: Rig):
    rig.write("a")
    async with rig.watching(replica="r1"):
        rig.start(replica="r2")
        await eventually(lambda: last_beat(rig, "r2"))
        first = max(await numbers(rig))
        await wipe_stream(rig)
        rig.write("b")
        await eventually(lambda: _has_number_above(rig, first))
        await eventually(lambda: _is_agreed(rig, above=first))
        rig.write("c")
        await eventually(rig.is_mirrored)
        record = await _record(rig.kv)
        assert {e.incarnation.number for e in await rig.events() if e.name == "c"} == {record}
        assert [number for number in await numbers(rig) if number > record] == []


async def test_w23_a_clock_set_back_a_day_undercuts_no_number(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    rig.write("a")
    async with rig.watching():
        await eventually(rig.checkpoint)
        (first,) = await numbers(rig)
        yesterday = first - 86_400_000
        monkeypatch.setattr("fleetbus_watcher.incarnation.now_ms", lambda: yesterday)
        await wipe_stream(rig)
        rig.write("b")
        await eventually(lambda: _has_number_above(rig, first))
    monkeypatch.undo()


async def test_w23_a_number_below_the_projectors_is_raised_once_it_says_so(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    """The bucket was lost and the clock set back, and the projector writes its keys later."""
    now = 1_000_000
    monkeypatch.setattr("fleetbus_watcher.incarnation.now_ms", lambda: now)
    async with rig.watching():
        assert await numbers(rig) == [now]
        await rig.kv.put(
            "_hub.alpha.resync.core.configmaps", b'{"minEpoch":1,"incarnation":2000000}'
        )
        await rig.bus.nc.publish("fleetbus.control.alpha")
        await eventually(lambda: _has_number_above(rig, 2_000_000))


@pytest.mark.slow
async def test_w23_a_bucket_that_was_wiped_ends_in_one_number_for_two_replicas(rig: Rig):
    async with rig.watching(replica="r1"):
        rig.start(replica="r2")
        await eventually(lambda: last_beat(rig, "r2"))
        first = await _record(rig.kv)
        await rig.bus.request("$JS.API.STREAM.DELETE.KV_FLEETBUS_STATE")
        await ensure_bucket(rig.bus)
        rig.write("a")
        await eventually(lambda: _is_agreed(rig, above=first))
        rig.write("b")
        await eventually(rig.is_mirrored)


async def _record(kv: KeyValue) -> int:
    entry = await kv.get("alpha.incarnation")
    return int(json.loads(entry.value)["number"]) if entry else 0


async def _is_agreed(rig: Rig, *, above: int) -> bool:
    """Both replicas beat under the number of the record."""
    latest = {beat.replica: beat.incarnation.number for beat in await rig.heartbeats()}
    record = await _record(rig.kv)
    return record > above and set(latest.values()) == {record} and len(latest) == 2


async def _is_beyond(rig: Rig, seq: int) -> bool:
    return await last_beat(rig) > seq


async def _has_number_above(rig: Rig, number: int) -> bool:
    return any(each_number > number for each_number in await numbers(rig))


async def _has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


async def _has_reported(rig: Rig, before: set[tuple[str, str]]) -> bool:
    return before <= await published(rig)
