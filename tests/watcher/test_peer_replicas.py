"""Two replicas of one watcher, both active: rule W15."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleetbus_emulator.apiserver import Delay, Expire
from fleetbus_proto.events import Event
from fleetbus_proto.subjects import Verb
from support.eventually import eventually
from support.processes.watcher import process
from support.rigs.watcher import CONFIG_MAPS, Rig, Stored, rig_for
from support.wire.grant_messages import Asker

LONG: dict[str, Any] = {"grant_patience": timedelta(minutes=1)}
RATE = 100
"""Changes per second, as T21 asks for; a thousand is what `make faults` does."""
PAUSE_AT_MOST = timedelta(seconds=2)
"""One is what T21 asks for, on a machine that runs nothing beside it."""


def asker_of(rig: Rig, replica: str) -> Asker:
    return Asker(rig.kv, "alpha", "configmaps", replica=replica)


async def grant(rig: Rig, replica: str) -> None:
    asker = asker_of(rig, replica)
    await eventually(asker.is_there)
    await asker.grant(rig.bus)


def first_pages(rig: Rig) -> list[Any]:
    return [r for r in rig.requests("list") if "continue" not in r.query]


async def test_w15_a_replica_that_finds_a_fresh_checkpoint_does_not_list(rig: Rig):
    rig.write("a")
    async with rig.watching(replica="r1"):
        await eventually(rig.checkpoint)
        async with rig.watching_on(replica="r2"):
            assert len(first_pages(rig)) == 1


@pytest.mark.slow
async def test_w15_of_two_replicas_that_may_list_the_later_one_waits_for_the_other(rig: Rig):
    for number in range(4):
        rig.write(f"a{number}")
    rig.cluster.faults.add(Delay(timedelta(seconds=0.3)), verb="list", resource="configmaps")
    rig.start(replica="r1", page_size=2, **LONG)
    rig.start(replica="r2", page_size=2, **LONG)
    await grant(rig, "r1")
    await eventually(asker_of(rig, "r1").is_begun)
    await grant(rig, "r2")
    await eventually(lambda: rig.cluster.open_watches == 2)
    assert len(first_pages(rig)) == 1
    assert len(await rig.ends()) == 1
    rig.write("b")
    await eventually(rig.is_mirrored)


async def test_w15_a_replica_that_waits_to_list_resumes_at_the_first_checkpoint_of_its_peer(
    rig: Rig,
):
    rig.write("a")
    rig.start(replica="r2", **LONG)
    await eventually(asker_of(rig, "r2").is_there)  # and nobody answers
    rig.start(replica="r1")
    await eventually(lambda: rig.cluster.open_watches == 2)
    await eventually(asker_of(rig, "r2").is_gone)
    assert len(first_pages(rig)) == 1


async def test_w15_a_watch_that_expired_goes_on_where_the_peer_is(rig: Rig):
    """Its own version is forgotten, but the peer replica's checkpoint is further."""
    rig.write("a")
    slow: dict[str, Any] = {"backoff_first": timedelta(seconds=0.5)}
    async with rig.watching(replica="r1", **slow):
        await eventually(rig.checkpoint)
        async with rig.watching_on(replica="r2", **slow):
            rule = rig.cluster.faults.add(Expire("stream"), verb="watch", count=1)
            rig.write("b")
            await eventually(lambda: rule.hits)
            await eventually(lambda: len(rig.requests("watch")) == 3)
            await eventually(rig.is_mirrored)
            assert len(first_pages(rig)) == 1


async def test_w15_a_peer_whose_list_never_ends_is_not_waited_for_longer_than_that(
    rig: Rig,
):
    rig.timing = replace(rig.timing, peer_epoch=timedelta(seconds=0.5))
    rig.write("a")
    dead = asker_of(rig, "dead")
    await dead.ask(epoch=int(time.time() * 1000) + 60_000)
    rig.start(replica="r1", **LONG)
    await grant(rig, "r1")
    await eventually(asker_of(rig, "r1").is_gone)  # it waits for the peer, without a grant
    assert first_pages(rig) == []
    await grant(rig, "r1")
    await eventually(rig.is_mirrored)
    assert len(first_pages(rig)) == 1


@pytest.mark.slow
async def test_w15_a_peer_without_a_heartbeat_is_given_up_early(rig: Rig):
    rig.write("a")
    dead = asker_of(rig, "dead")
    await dead.ask(epoch=int(time.time() * 1000) + 60_000)
    begun = time.monotonic()
    rig.start(replica="r1", heartbeat_idle=timedelta(seconds=0.2), **LONG)
    await grant(rig, "r1")
    await eventually(asker_of(rig, "r1").is_gone)
    await grant(rig, "r1")
    await eventually(rig.is_mirrored)
    assert time.monotonic() - begun < 30, "a live peer replica is waited for two minutes"


# --- processes --------------------------------------------------------------------------------


@pytest.fixture
async def replicas(
    nats_url: str, tmp_path: Path
) -> AsyncGenerator[tuple[Rig, list[asyncio.subprocess.Process]]]:
    """Two watchers of one cluster as processes, both with an open watch."""
    async with rig_for(nats_url, event_capacity=20_000) as rig, AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(process(rig, tmp_path, nats_url, replica=replica))
            for replica in ("p1", "p2")
        ]
        await eventually(lambda: rig.cluster.open_watches == 2, timedelta(seconds=30))
        await eventually(lambda: _both_watch(rig), timedelta(seconds=30))
        yield rig, both


@pytest.mark.full  # CI runs the cut of `make faults`
async def test_w15_t21_stopping_one_replica_and_killing_the_other_leaves_no_gap_and_no_double(
    replicas: tuple[Rig, list[asyncio.subprocess.Process]],
):
    rig, (first, second) = replicas
    writer = asyncio.create_task(_write_for_ever(rig))
    try:
        await asyncio.sleep(0.3)  # under load
        first.send_signal(signal.SIGSTOP)
        await asyncio.sleep(0.6)  # it is away under load
        first.send_signal(signal.SIGCONT)  # it goes on as if nothing had been
        await asyncio.sleep(0.5)  # under load
        second.kill()
        await second.wait()
        await asyncio.sleep(0.5)  # under load
    finally:
        writer.cancel()
    await eventually(lambda: _all_reported(rig), timedelta(seconds=20))
    await eventually(rig.is_mirrored)
    live = [s for s in await rig.stored() if _is_live(s)]
    ids = [s.headers["Nats-Msg-Id"] for s in live]
    assert len(ids) == len(set(ids)), "nothing is stored twice inside the window"
    assert len(ids) > RATE, "it was load"
    assert _longest_gap(rig, live) < PAUSE_AT_MOST
    assert len(first_pages(rig)) <= 2  # both may have started at once, with nobody to ask


async def _write_for_ever(rig: Rig) -> None:
    begun = time.monotonic()
    number = 0
    while True:
        while number < (time.monotonic() - begun) * RATE:
            number += 1
            name = f"a{number % 40}"
            if number % 7 == 0 and rig.cluster.get(CONFIG_MAPS, "default", name) is not None:
                rig.remove(name)
            else:
                rig.write(name, str(number))
        await asyncio.sleep(0.005)  # the pace of the load


async def _both_watch(rig: Rig) -> bool:
    states = {
        beat.replica: [status.state for status in beat.resources] for beat in await rig.heartbeats()
    }
    return states == {"p1": ["watching"], "p2": ["watching"]}


async def _all_reported(rig: Rig) -> bool:
    """Each change, and not only the last of each object, is on the stream."""
    published = {(event.name, event.resource_version) for event in await rig.events()}
    changes = [c for c in rig.cluster.history if c.resource == "configmaps"]
    return all((c.name, str(c.rv)) in published for c in changes)


def _is_live(stored: Stored) -> bool:
    return isinstance(stored.message, Event) and stored.message.verb is not Verb.LISTED


def _longest_gap(rig: Rig, live: list[Stored]) -> timedelta:
    """From a commit to its place on the stream."""
    commits = {(c.name, str(c.rv)): c.time for c in rig.cluster.history}
    gaps: list[timedelta] = []
    for stored in live:
        event = stored.message
        assert isinstance(event, Event)
        at = datetime.fromisoformat(stored.headers["Nats-Time-Stamp"])
        gaps.append(at - commits[event.name, event.resource_version])
    return max(gaps)
