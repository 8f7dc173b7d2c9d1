"""W11: an API server that hangs is reported soon, and one that is only quiet is left alone.

Timers are a hundredth or a thousandth of what they are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from fleetbus.kube.connection.backoff import BackoffPolicy
from fleetbus.snapshot.records import ANSWERED_WITHIN
from fleetbus_emulator.apiserver import Fail, Hang, HideBookmarks, Partition, StallWatch
from fleetbus_proto.events import Heartbeat
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.timing import USUAL
from support.eventually import eventually, stays
from support.rigs.watcher import QUICK_TIMING, Rig, rig_for

QUIET = 0.1
OFTEN: dict[str, Any] = {"heartbeat_idle": timedelta(seconds=0.1)}


SOON = replace(
    QUICK_TIMING,
    probes=BackoffPolicy(first=timedelta(milliseconds=10), cap=timedelta(milliseconds=15)),
    return_spread=timedelta(milliseconds=10),
    quiet=timedelta(seconds=QUIET),
    answers_within=timedelta(milliseconds=300),
)


@pytest_asyncio.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    async with rig_for(nats_url, timing=SOON) as opened:
        yield opened


@pytest_asyncio.fixture
async def silent(nats_url: str) -> AsyncGenerator[Rig]:
    """A cluster that sends no bookmark."""
    async with rig_for(nats_url, timing=SOON, bookmark_interval=timedelta(hours=1)) as rig:
        yield rig


def probes(rig: Rig) -> list[Any]:
    return [request for request in rig.cluster.requests if request.path == "/readyz"]


async def last(rig: Rig) -> Heartbeat:
    return (await rig.heartbeats())[-1]


async def is_connected(rig: Rig, *, connected: bool) -> bool:
    return (await last(rig)).connected == connected


# --- quiet ------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_w11_a_quiet_cluster_of_many_resources_is_never_cut_and_never_shown_failing(
    silent: Rig,
):
    """A second is a quarter of an hour here."""
    silent.timing = replace(SOON, quiet=timedelta(seconds=0.01))
    chosen: dict[str, Any] = {"resources": ("*",), "silence": timedelta(seconds=0.5)}
    async with silent.watching(**chosen, **OFTEN):
        await eventually(lambda: is_settled(silent))
        assert len((await last(silent)).resources) > 30
        watches = [r.number for r in silent.cluster.requests if r.verb == "watch"]
        count = len(probes(silent))
        begun = len(await silent.heartbeats())
        await stays(
            watches,
            lambda: [r.number for r in silent.cluster.requests if r.verb == "watch"],
            timedelta(seconds=1),
        )
        reported = (await silent.heartbeats())[begun:]
        assert {(status.state, status.watch_open) for b in reported for status in b.resources} == {
            ("watching", True)
        }
        assert {b.connected for b in reported} == {True}
        # One question for the cluster, whatever it has.
        assert 5 < len(probes(silent)) - count <= 100


async def is_settled(rig: Rig) -> bool:
    return {status.state for status in (await last(rig)).resources} == {"watching"}


async def test_w11_an_api_server_whose_watches_are_lively_is_not_asked(rig: Rig):
    async with rig.watching():  # a bookmark comes every 0.2 s
        await eventually(lambda: len(probes(rig)) > 0)  # quiet for 0.1 s it is
    often = timedelta(seconds=0.02)
    async with (
        rig_for(rig.nats_url, "beta", SOON, bookmark_interval=often) as lively,
        lively.watching(),
    ):
        await eventually(lambda: lively.cluster.open_watches == 1)
        before = len(probes(lively))
        await stays(before, lambda: len(probes(lively)), timedelta(seconds=0.5))


@pytest.mark.slow
async def test_w11_a_quiet_watch_that_had_failed_is_well_once_it_stands(silent: Rig):
    async with silent.watching(**OFTEN):
        await silent.servers.stop("alpha")
        await eventually(lambda: is_shown(silent, state="failing", watch_open=False))
        await silent.servers.start("alpha")
        await eventually(lambda: is_shown(silent, state="watching", watch_open=True))


async def is_shown(rig: Rig, *, state: str, watch_open: bool) -> bool:
    status = await rig.status()
    return status is not None and (status.state, status.watch_open) == (state, watch_open)


@pytest.mark.slow
async def test_w11_a_watch_is_proved_anew_when_its_time_is_over(silent: Rig):
    """Also one that the server, or what is between, does not end."""
    async with silent.watching(watch_lasts=timedelta(seconds=0.5), **OFTEN):
        silent.cluster.faults.add(StallWatch(), verb="watch", count=1)
        silent.write("a")
        await eventually(silent.is_mirrored)
        assert len(silent.requests("list")) == 1
        await eventually(lambda: is_shown(silent, state="watching", watch_open=True))


# --- silent -----------------------------------------------------------------------------------


def test_w11_a_silent_api_server_is_reported_within_30_s_and_a_sound_one_never_counts_as_silent():
    pause = 2 * USUAL.probes.cap  # with its jitter
    assert USUAL.quiet + 2 * (pause + USUAL.answers_within) <= timedelta(seconds=30)
    heartbeat: timedelta = WatcherSettings.model_fields["heartbeat_idle"].default
    assert USUAL.quiet + USUAL.probes.first * 2 + heartbeat < ANSWERED_WITHIN


@pytest.mark.parametrize("cut", [Partition.HANG, Partition.LOSE_ANSWERS])
async def test_w11_a_server_that_hangs_is_not_connected_and_goes_on_without_a_list(
    silent: Rig, cut: Partition
):
    async with silent.watching(**OFTEN):
        await eventually(lambda: is_connected(silent, connected=True))
        await silent.servers.partition("alpha", cut)
        silent.write("meanwhile")
        await eventually(lambda: is_connected(silent, connected=False))
        await eventually(lambda: is_shown(silent, state="failing", watch_open=False))
        beat = await last(silent)
        assert beat.reason == "Unreachable"
        answered = beat.last_answer
        assert datetime.fromisoformat(answered) < datetime.fromisoformat(beat.observed_at)
        await silent.servers.heal("alpha")
        await eventually(lambda: is_connected(silent, connected=True))
        await eventually(silent.is_mirrored)
        assert (await last(silent)).last_answer > answered
        assert len(silent.requests("list")) == 1


async def test_w11_a_server_that_hangs_at_the_start_is_reported_before_a_question_is_given_up(
    silent: Rig,
):
    hang = [silent.cluster.faults.add(Hang(), verb=verb) for verb in ("get", "health")]
    silent.start(**OFTEN)
    await eventually(lambda: is_unreachable(silent))
    for rule in hang:
        rule.remove()
    await eventually(lambda: silent.cluster.open_watches == 1)


async def is_unreachable(rig: Rig) -> bool:
    beats = await rig.heartbeats()
    return bool(beats) and beats[-1].reason == "Unreachable"


async def test_w11_one_probe_without_an_answer_is_no_reason_to_cut(silent: Rig):
    async with silent.watching(**OFTEN):
        await eventually(lambda: is_connected(silent, connected=True))
        begun = len(await silent.heartbeats())
        rule = silent.cluster.faults.add(Fail(503), verb="health", count=1)
        await eventually(lambda: rule.hits == 1)
        count = len(probes(silent))
        await eventually(lambda: len(probes(silent)) > count)
        assert len(silent.requests("watch")) == 1
        await eventually(lambda: beats_after(silent, begun))
        assert {beat.connected for beat in (await silent.heartbeats())[begun:]} == {True}


async def beats_after(rig: Rig, count: int) -> bool:
    return len(await rig.heartbeats()) > count


@pytest.mark.parametrize(
    ("status", "reason"), [(500, "NotReady"), (403, "Forbidden"), (401, "Unauthorized")]
)
async def test_w11_a_server_that_answers_that_it_is_not_ready_is_connected_and_says_so(
    silent: Rig, status: int, reason: str
):
    async with silent.watching(**OFTEN):
        await eventually(lambda: is_connected(silent, connected=True))
        rule = silent.cluster.faults.add(Fail(status), verb="health")
        await eventually(lambda: says(silent, reason))
        assert silent.cluster.open_watches == 1
        rule.remove()
        await eventually(lambda: says(silent, ""))
        assert len(silent.requests("watch")) == 1


async def says(rig: Rig, reason: str) -> bool:
    beat = await last(rig)
    assert beat.connected
    return beat.reason == reason and ("/readyz" in beat.message) == bool(reason)


@pytest.mark.slow
async def test_w11_bookmarks_alone_keep_the_last_answer_fresh(rig: Rig):
    rig.cluster.faults.add(Hang(), verb="health")
    async with rig.watching(**OFTEN):
        await eventually(lambda: is_connected(rig, connected=True))
        first = (await last(rig)).last_answer
        await eventually(lambda: is_answered_after(rig, first))
        rig.cluster.faults.add(HideBookmarks(), verb="watch")
        # A probe that hung has lost its connection: the next one asks a new one who answers there.
        rig.cluster.faults.add(Hang(), resource="namespaces")
        await eventually(lambda: is_connected(rig, connected=False))


async def is_answered_after(rig: Rig, time: str) -> bool:
    return (await last(rig)).last_answer > time
