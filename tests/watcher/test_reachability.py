"""W19: a cluster that was away is in step soon after its return, and is not rushed upon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleetbus.errors import FleetbusError, Forbidden, NotFound, ServerError, Unreachable
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import BackoffPolicy
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus_emulator.apiserver import Fail, Hang
from fleetbus_watcher.reachability import Reachability
from support.eventually import eventually, never, stays
from support.rigs.watcher import QUICK_TIMING, Rig, rig_for

RESOURCES = ("configmaps", "services", "pods", "endpoints")
MINUTE = timedelta(minutes=1)
GROWN: dict[str, Any] = {
    "resources": RESOURCES,
    # As they are after a long absence: whoever goes on before that was woken.
    "backoff_first": MINUTE,
    "backoff_cap": MINUTE,
}
QUICKLY = timedelta(seconds=15)
"""Far less than the pauses, on whatever machine."""
SECONDS = QUICKLY.total_seconds()
NO_ANSWER = Unreachable(0, "Unreachable", "refused")


SOON = replace(
    QUICK_TIMING,
    probes=BackoffPolicy(first=timedelta(milliseconds=20), cap=timedelta(milliseconds=40)),
    return_spread=timedelta(milliseconds=50),
    answers_within=timedelta(milliseconds=200),
)


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    async with rig_for(nats_url, timing=SOON) as opened:
        yield opened


def probes(rig: Rig) -> list[Any]:
    return [request for request in rig.cluster.requests if request.path == "/readyz"]


def watches(rig: Rig) -> int:
    return sum(len(rig.requests("watch", plural)) for plural in RESOURCES)


async def are_failing(rig: Rig) -> bool:
    statuses = [await rig.status(plural) for plural in RESOURCES]
    return all(status is not None and status.state == "failing" for status in statuses)


@asynccontextmanager
async def away(rig: Rig) -> AsyncGenerator[None]:
    """From now on, and until a probe was in vain behind the block."""
    with capture_logs() as logs:
        await rig.servers.stop("alpha")
        yield
        await eventually(lambda: any(line["event"] == "api_server_unreachable" for line in logs))
    await rig.servers.start("alpha")


# --- watches ----------------------------------------------------------------------------------


async def test_w19_every_watch_goes_on_as_soon_as_a_cluster_that_was_away_is_back(rig: Rig):
    async with rig.watching(**GROWN):
        await eventually(lambda: rig.cluster.open_watches == 4)
        async with away(rig):
            await eventually(lambda: are_failing(rig))
            rig.write("a")
        await eventually(lambda: rig.cluster.open_watches == 4, QUICKLY)
        await eventually(rig.is_mirrored)
        assert len(rig.requests("list")) == 1
        assert watches(rig) == 8


async def test_w19_a_cluster_that_is_down_at_the_start_is_watched_as_soon_as_it_is_there(rig: Rig):
    async with away(rig):
        rig.start(**GROWN)
    await eventually(lambda: rig.cluster.open_watches == 4, QUICKLY)


async def test_w19_a_server_that_answers_is_not_probed(rig: Rig):
    rig.cluster.faults.add(Fail(429, retry_after=timedelta()), verb="watch", count=4)
    async with rig.watching(**GROWN | {"backoff_first": timedelta(milliseconds=20)}):
        await eventually(lambda: rig.cluster.open_watches == 4)
        rig.write("a")
        await eventually(rig.is_mirrored)
        assert probes(rig) == []


async def test_w19_a_server_that_is_there_but_refuses_the_watches_is_asked_at_their_pace(rig: Rig):
    rig.cluster.faults.add(Fail(503), verb="watch")
    async with rig.watching(**GROWN):
        await eventually(lambda: watches(rig) == 4)
        await eventually(lambda: len(probes(rig)) > 0)
        # some periods of the probe
        await stays(4, lambda: watches(rig), timedelta(seconds=0.3))
        assert len(probes(rig)) <= 4  # one for each failure, at most


async def test_w19_a_server_that_is_back_but_refuses_the_watches_is_not_rushed_upon(rig: Rig):
    async with rig.watching(**GROWN):
        await eventually(lambda: rig.cluster.open_watches == 4)
        async with away(rig):
            await eventually(lambda: are_failing(rig))
            before = watches(rig)
            rig.cluster.faults.add(Fail(503), verb="watch")
        await eventually(lambda: watches(rig) == before + 4)
        # the rest after the first wake is a second and more
        await stays(before + 4, lambda: watches(rig), timedelta(seconds=0.4))


# --- probes -----------------------------------------------------------------------------------


@asynccontextmanager
async def reaching(rig: Rig) -> AsyncGenerator[Reachability]:
    async with KubeClient(rig.config) as client:
        reach = Reachability(client, "alpha", asyncio.Event(), SOON)
        task = asyncio.create_task(reach.run())
        try:
            yield reach
        finally:
            await cancel_and_wait(task)


@asynccontextmanager
async def waiting(*waits: Awaitable[None]) -> AsyncGenerator[Sequence[asyncio.Future[None]]]:
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def are_one_by_one(rig: Rig) -> bool:
    """Whether probes that hang until they are given up, after 0.2 s, did not overlap."""
    times = [request.time for request in probes(rig)]
    return all(b - a >= timedelta(seconds=0.12) for a, b in pairwise(times))


async def test_w19_one_probe_at_a_time_asks_for_all_who_wait(rig: Rig):
    async with (
        reaching(rig) as reach,
        waiting(*(reach.pause(NO_ANSWER, MINUTE) for _ in range(50))) as pauses,
    ):
        hang = rig.cluster.faults.add(Hang(), verb="health")
        await eventually(lambda: hang.hits >= 3)
        count = len(probes(rig))
        assert are_one_by_one(rig)
        hang.remove()
        await asyncio.wait_for(asyncio.gather(*pauses), SECONDS)
        assert len(probes(rig)) <= count + 2


async def test_w19_nobody_is_asked_for_those_who_do_not_wait_any_more(rig: Rig):
    rig.cluster.faults.add(Fail(503), verb="health")
    async with reaching(rig) as reach:
        async with waiting(reach.pause(NO_ANSWER, MINUTE)):
            await eventually(lambda: len(probes(rig)) > 0)
        before = len(probes(rig))
        # some periods
        await never(lambda: len(probes(rig)) > before + 1, timedelta(seconds=0.3))


async def test_w19_what_was_asked_before_the_return_and_hangs_is_asked_again(rig: Rig):
    away = rig.cluster.faults.add(Fail(503), verb="health")
    rig.cluster.faults.add(Hang(), verb="get", resource="namespaces", count=1)
    async with reaching(rig) as reach, KubeClient(rig.config) as client:
        retry = asyncio.ensure_future(reach.retry(client.kube_system_uid))
        async with waiting(reach.pause(NO_ANSWER, MINUTE)):
            await eventually(lambda: away.hits > 0)
            away.remove()
            assert await asyncio.wait_for(retry, SECONDS) == await client.kube_system_uid()


async def test_w21_a_second_stop_while_a_question_is_given_up_leaves_no_task(rig: Rig):
    is_asked, may_end = asyncio.Event(), asyncio.Event()

    async def question() -> None:
        is_asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    async with reaching(rig) as reach:
        before = asyncio.all_tasks()
        asking = asyncio.create_task(reach.retry(question))
        await is_asked.wait()
        asking.cancel()
        await asyncio.sleep(0)  # now it waits for the end of the question
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        may_end.set()
        await eventually(lambda: asyncio.all_tasks() <= before)


@pytest.mark.parametrize(
    ("error", "is_woken"),
    [
        (NO_ANSWER, True),
        (ServerError(503, "", "no backend"), True),
        (ServerError(200, "Unreadable", "the watch ended at once"), True),
        (NotFound(404, "NotFound", "no such type"), False),
        (Forbidden(403, "Forbidden", "no"), False),
    ],
)
async def test_w19_only_who_got_no_answer_is_woken(rig: Rig, error: FleetbusError, is_woken: bool):
    away = rig.cluster.faults.add(Fail(503), verb="health")
    async with (
        reaching(rig) as reach,
        waiting(reach.pause(NO_ANSWER, MINUTE), reach.pause(error, MINUTE)) as (first, second),
    ):
        await eventually(lambda: away.hits > 0)
        away.remove()
        await asyncio.wait_for(first, SECONDS)
        # Those who are left alone get longer than the others are spread.
        await asyncio.wait([second], timeout=SECONDS if is_woken else 0.2)
        assert second.done() == is_woken


async def test_w19_nobody_goes_on_before_the_server_wants_it(rig: Rig):
    busy = ServerError(503, "", "busy")
    busy.retry_after = timedelta(seconds=0.5)
    away = rig.cluster.faults.add(Fail(503), verb="health")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    async with (
        reaching(rig) as reach,
        waiting(reach.pause(NO_ANSWER, MINUTE), reach.pause(busy, MINUTE)) as (first, second),
    ):
        await eventually(lambda: away.hits > 0)
        away.remove()
        await asyncio.wait_for(first, SECONDS)
        await asyncio.wait_for(second, SECONDS)
        assert loop.time() - begun >= 0.5


@pytest.mark.slow
async def test_w19_the_probe_waits_as_long_as_the_server_wants(rig: Rig):
    rule = rig.cluster.faults.add(
        Fail(429, retry_after=timedelta(seconds=1)), verb="health", count=1
    )
    async with reaching(rig) as reach, waiting(reach.pause(NO_ANSWER, MINUTE)) as (pause,):
        await asyncio.wait_for(pause, SECONDS)
        first, second = probes(rig)
        assert rule.hits == 1
        assert second.time - first.time >= timedelta(seconds=1)
