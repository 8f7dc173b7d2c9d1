"""Who pays for a run: the cluster whose change caused it (rule Q9); both queues, one contract."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.workqueue import Add, Priority, QueuePolicy
from support.stores.workqueue import Rig, named

if TYPE_CHECKING:
    from fleetbus.workqueue import Lease, Queue

POLICY = QueuePolicy(breaker=2)
LONG = timedelta(seconds=40)
"""Longer than any pause of a breaker."""


@pytest.fixture
def policy() -> QueuePolicy:
    return POLICY


def caused(by: str, *clusters: str, name: str = "x") -> list[Add]:
    """One request of each cluster, all caused by one other."""
    return [Add(named(name, cluster=cluster), cause=by) for cluster in clusters]


def targets(leases: list[Lease]) -> list[str]:
    return [lease.request.cluster for lease in leases]


async def finish(rig: Rig) -> None:
    """Run everything to its end; nothing may be left."""
    for _ in range(50):
        await rig.advance(LONG)
        leases = await rig.queue.take(500)
        for lease in leases:
            await rig.queue.forget(lease)
        await rig.queue.done(leases)
        if not leases and await rig.is_empty():
            return
    raise AssertionError(await rig.queue.stats())


async def test_q9_a_cluster_that_names_many_others_has_no_more_turns_for_it(rig: Rig):
    await rig.queue.add(caused("loud", *(f"c{n}" for n in range(50))))
    await rig.queue.add([Add(named("honest", cluster="us1"))])
    first = await rig.queue.take(3)
    assert "us1" in targets(first)
    await rig.queue.done(first)
    await finish(rig)


async def test_q9_what_names_a_cluster_does_not_hold_up_its_own_changes(rig: Rig):
    queue = rig.queue
    await queue.add([Add(named(f"n{n}", cluster="us1"), cause="loud") for n in range(50)])
    await queue.add([Add(named("honest", cluster="us1"))])
    assert "honest" in [lease.request.name for lease in await queue.take(3)]


async def test_q9_a_change_of_its_own_takes_a_request_over(rig: Rig):
    queue = rig.queue
    await queue.add([Add(named(f"n{n}", cluster="us1"), cause="loud") for n in range(50)])
    await queue.add([Add(named("n49", cluster="us1"))])
    leases = await queue.take(3)
    taken = {lease.request.name: lease.charged_cluster for lease in leases}
    assert taken["n49"] == "us1"
    await queue.done(leases)
    await finish(rig)


async def test_q9_slots_are_those_of_who_caused_it(queue: Queue):
    await queue.add(caused("loud", "c1", "c2", "c3"))
    await queue.add([Add(named("own", cluster="loud")), Add(named("own", cluster="c1"))])
    leases = await queue.take(9, default_capacity=2)
    assert Counter(lease.charged_cluster for lease in leases) == {"loud": 2, "c1": 1}
    assert await queue.take(9, capacity={"loud": 0}) == []
    assert (await queue.stats()).depth == {("loud", Priority.LIVE): 2}


async def test_q9_who_caused_it_is_kept_over_a_retry_and_a_return(rig: Rig):
    queue = rig.queue
    await queue.add(caused("loud", "c1"))
    for end in ("retry", "return"):
        [lease] = await queue.take(1)
        assert lease.charged_cluster == "loud"
        if end == "retry":
            await queue.retry(lease)
            await queue.done([lease])
        else:
            await queue.give_back([lease])
        await rig.advance(LONG)
    await finish(rig)


async def fail_unreachable(queue: Queue, leases: list[Lease]) -> None:
    for lease in leases:
        await queue.retry(lease, unreachable=True)
    await queue.done(leases)


async def test_q9_the_breaker_is_that_of_the_cluster_that_did_not_answer(rig: Rig):
    queue = rig.queue
    await queue.add(caused("eu1", "dead", name="a") + caused("eu1", "dead", name="b"))
    await fail_unreachable(queue, await queue.take(2))
    [breaker] = (await queue.stats()).breakers
    assert breaker.cluster == "dead"
    await queue.add([*caused("eu1", "dead", "us1", name="c"), Add(named("own", cluster="eu1"))])
    assert sorted(targets(await queue.take(9))) == ["eu1", "us1"], "the others go on"


async def test_q9_what_a_dead_cluster_caused_elsewhere_goes_on(rig: Rig):
    queue = rig.queue
    await queue.add([Add(named(name, cluster="dead")) for name in ("a", "b", "c")])
    await fail_unreachable(queue, await queue.take(2))
    await queue.add(caused("dead", "us1"))
    assert targets(await queue.take(9)) == ["us1"]


async def test_q9_a_request_that_others_caused_is_a_probe_too_and_lets_the_rest_go(rig: Rig):
    queue = rig.queue
    await queue.add(caused("eu1", "dead", name="a") + caused("eu1", "dead", name="b"))
    await fail_unreachable(queue, await queue.take(2))
    await queue.add(caused("eu1", "dead", name="c"))
    assert await queue.take(9) == []
    await rig.advance(LONG)
    assert await queue.take(9, probes=0) == []
    await rig.advance(LONG)
    [probe] = await queue.take(9)
    assert probe.is_probe
    await queue.forget(probe)
    await queue.done([probe])
    assert not (await queue.stats()).breakers
    await finish(rig)
