"""Bugs that other queues had, one test each (rule Q13).

| bug | test |
|---|---|
| deadlock on shutdown (controller-runtime #3540) | here |
| an item is handed to two waiters, or one sleeps on | here |
| series of what is gone stay (metric leak) | here |
| a high priority is not first (controller-runtime #3330) | `test_q13_a_high_priority_goes_first` |
| order after a priority change | `test_q13_a_raised_priority_keeps_the_age_…` |
| Get blocks on a closed queue | `test_q13_a_closed_queue_wakes_who_waits` |
| stuck `in_progress` for 310 s (arq) | `test_q13_nothing_is_stuck_in_processing_…` |
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from prometheus_client import REGISTRY

from fleetbus.process import metrics
from fleetbus.worker.queue_gauges import QueueGauges
from fleetbus.workqueue import Add, Priority, QueueClosedError, Stats
from support.stores.workqueue import Rig, named

if TYPE_CHECKING:
    from fleetbus.workqueue import Queue

LONG = timedelta(seconds=30)


async def work_until_closed(queue: Queue) -> None:
    try:
        while True:
            await queue.done(await queue.take(3, wait=LONG))
    except QueueClosedError:
        return


async def test_q13_a_shutdown_amid_adds_takes_and_waits_ends(rig: Rig):
    queue = rig.queue
    workers = [asyncio.create_task(work_until_closed(queue)) for _ in range(8)]
    adds = [Add(named(f"n{n}", cluster=f"c{n % 3}"), Priority(n % 3)) for n in range(30)]
    for _ in range(5):
        await queue.add(adds)
        await queue.add_after(adds[0].request, timedelta(milliseconds=5))
    await queue.aclose()
    await asyncio.wait_for(asyncio.gather(*workers), 15)
    assert (await queue.stats()).processing == 0


async def test_q13_of_waiters_that_race_each_gets_its_own_item_and_none_sleeps_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus.workqueue.redis.POLL", 60)  # they have to be notified
    queue = rig.queue
    for turn in range(20):
        waiting = [asyncio.create_task(queue.take(1, wait=LONG)) for _ in range(3)]
        await asyncio.sleep(0.001 * (turn % 3))  # at another moment each turn
        await queue.add([Add(named(f"n{n}")) for n in range(3)])
        async with asyncio.timeout(15):
            leases = [lease for leases in await asyncio.gather(*waiting) for lease in leases]
        assert sorted(lease.request.name for lease in leases) == ["n0", "n1", "n2"]
        await queue.done(leases)


def test_q13_no_series_outlives_its_cluster():
    def series() -> set[str]:
        return {
            sample.name
            for metric in REGISTRY.collect()
            for sample in metric.samples
            if sample.labels.get("cluster") == "gone-again"
        }

    gauges = QueueGauges("leak")
    stats = Stats({("gone-again", Priority.LIVE): 1}, 0, 0, 0, LONG)
    metrics.create_cluster_metrics("leak", "gone-again")
    gauges.show(stats, ["gone-again"])
    assert len(series()) >= 4
    metrics.drop_cluster_metrics("leak", "gone-again")
    gauges.show(stats, [])
    assert series() == set()
