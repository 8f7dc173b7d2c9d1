"""The clock that is moved by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from emulator.support.sim_rig import DEPLOYMENTS, PODS, pod, replicas, workload
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.controllers import ManualClock, Timing, simulate

START = datetime(2031, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


async def test_callbacks_come_in_the_order_of_their_times_each_at_its_own():
    clock = ManualClock(START)
    received: list[tuple[str, float]] = []

    def receive(name: str) -> None:
        received.append((name, (clock() - START).total_seconds()))

    for name, seconds in (("c", 3), ("a", 1), ("late", 9), ("b", 3)):
        clock.call_later(seconds, receive, name)
    clock.call_later(2, receive, "never").cancel()
    await clock.advance(5 * SECOND)
    assert received == [("a", 1), ("c", 3), ("b", 3)]
    assert (clock() - START, clock.timers) == (5 * SECOND, 1)


async def test_what_a_callback_sets_is_due_within_the_same_move():
    clock = ManualClock(START)
    received: list[float] = []

    def tick() -> None:
        received.append((clock() - START).total_seconds())
        clock.call_later(10, tick)

    clock.call_later(10, tick)
    await clock.advance(35 * SECOND)
    assert received == [10, 20, 30]


async def test_nothing_to_wait_for_is_an_error():
    clock = ManualClock(START)
    assert await clock.advance_to_next() is False
    assert clock() == START


async def test_a_simulation_lives_through_hours_at_once_and_its_objects_tell_the_time():
    clock = ManualClock(START)
    cluster = Cluster("alpha", seed=1, clock=clock)
    timing = Timing(start=timedelta(minutes=30), ready=timedelta(minutes=30))
    async with simulate(cluster, timing=timing):
        cluster.create(PODS, pod("p"))
        await clock.advance(timedelta(minutes=59))
        (live_pod,) = cluster.list(PODS)
        started = live_pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        assert started == "2031-05-01T00:30:00Z"
        await clock.advance(timedelta(minutes=1))
        conditions = {c["type"]: c for c in cluster.list(PODS)[0]["status"]["conditions"]}
        assert conditions["Ready"]["lastTransitionTime"] == "2031-05-01T01:00:00Z"


async def test_settled_moves_it_as_far_as_it_takes_and_no_farther():
    clock = ManualClock(START)
    cluster = Cluster("alpha", seed=1, clock=clock)
    async with simulate(cluster, timing=Timing(ready=timedelta(hours=2))) as (simulator,):
        body = workload("web", replicas=2, progressDeadlineSeconds=36_000, minReadySeconds=60)
        cluster.create(DEPLOYMENTS, body)
        await simulator.settled()
        assert clock() == START + timedelta(hours=2)
        assert replicas(cluster, "web")["readyReplicas"] == 2
        await clock.advance(60 * SECOND)
        assert replicas(cluster, "web")["availableReplicas"] == 2


async def test_several_clusters_share_it():
    clock = ManualClock(START)
    clusters = [Cluster(name, seed=1, clock=clock) for name in ("alpha", "beta")]
    async with simulate(clusters, timing=Timing(start=10 * SECOND)):
        for cluster in clusters:
            cluster.create(PODS, pod("p"))
        await clock.advance(11 * SECOND)
        assert [c.list(PODS)[0]["status"]["phase"] for c in clusters] == ["Running", "Running"]
