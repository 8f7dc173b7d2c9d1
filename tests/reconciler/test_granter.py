"""The projector grants epochs (rule W7); the test asks as watchers do."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from nats.aio.msg import Msg
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from fleetbus.bus.connection import subscribed
from fleetbus.bus.jetstream import call_jetstream, ensure_bucket, stream_info
from fleetbus.watchers.grant_requests import GrantAnswer, read_grant_requests
from fleetbus_proto.keys import KV_BUCKET, kv_grant
from fleetbus_proto.subjects import CONTROL_GRANTS, control_subject
from support.eventually import eventually, never, stays
from support.rigs.projector import ProjectorRig
from support.stores.snapshot import Source
from support.wire.grant_messages import Asker

MIB = 1024**2


@pytest.fixture
async def rig(rig: ProjectorRig) -> ProjectorRig:
    rig.timing = replace(
        rig.timing,
        grant_turns=timedelta(milliseconds=50),
        # On a busy machine half a second may pass before a test that was granted begins.
        grant_begun=timedelta(minutes=1),
    )
    return rig


@pytest.fixture
async def ready(rig: ProjectorRig) -> ProjectorRig:
    """A projector that grants."""
    await rig.started("eu1")
    return rig


def asker(rig: ProjectorRig, cluster: str = "eu1", resource: str = "pods", **who: str) -> Asker:
    return Asker(rig.connections.kv, cluster, resource, **who)


async def run(asking: Asker, epoch: int) -> None:
    """An epoch that is granted and begins."""
    await asking.ask()
    await eventually(asking.is_granted)
    await asking.begin(epoch)


def source(asking: Asker, epoch: int) -> Source:
    return Source(
        cluster=asking.cluster, resource=asking.resource, scope=asking.scope, rank=(9, epoch)
    )


async def granted_of(askers: list[Asker]) -> list[Asker]:
    return [asking for asking in askers if await asking.is_granted()]


async def number_granted(askers: list[Asker]) -> int:
    return len(await granted_of(askers))


# --- one epoch --------------------------------------------------------------------------------


async def test_w7_an_ask_is_granted_at_once_and_the_watchers_are_woken(ready: ProjectorRig):
    received: list[bytes] = []

    async def on_message(message: Msg) -> None:
        received.append(message.data)

    async with subscribed(ready.bus, control_subject("mars"), on_message):
        first_asker = asker(ready, "mars")  # a watcher may list before its cluster has joined
        await first_asker.ask()
        await eventually(first_asker.is_granted)  # all keys are read twice a minute only
        await eventually(lambda: received == [CONTROL_GRANTS])


async def test_w7_a_grant_ends_when_the_end_of_its_epoch_is_read(ready: ProjectorRig):
    first_asker = asker(ready)
    await run(first_asker, 5)
    await ready.publish_epoch(source(first_asker, 4), a=1)  # of an earlier epoch
    await stays(True, first_asker.is_granted)
    await ready.publish_epoch(source(first_asker, 5), a=1)
    await eventually(first_asker.is_gone)


async def test_w7_a_grant_ends_also_when_the_end_is_read_before_the_epoch_was_reported(
    ready: ProjectorRig,
):
    first_asker = asker(ready)
    await first_asker.ask()
    await eventually(first_asker.is_granted)
    await ready.publish_epoch(source(first_asker, 5), a=1)
    await ready.synced(epoch="9 5")
    await first_asker.begin(5)
    await eventually(first_asker.is_gone)


async def test_w15_two_replicas_and_two_scopes_have_grants_of_their_own(ready: ProjectorRig):
    ready_askers = [
        asker(ready, replica=replica, scope=scope) for replica in "ab" for scope in ("", "s1")
    ]
    for number, each_asker in enumerate(ready_askers):
        await run(each_asker, 10 + number)
    await ready.publish_epoch(source(ready_askers[2], 12), a=1)
    await eventually(ready_askers[2].is_gone)
    assert await number_granted(ready_askers) == 3


# --- many ---------------------------------------------------------------------------------------


async def test_w7_many_clusters_are_granted_few_at_once_in_the_order_of_asking(
    rig: ProjectorRig,
):
    rig.settings["epochs_at_once"] = 7
    await rig.started("eu1")
    askers = [asker(rig, f"c{number:02}") for number in range(30)]
    for each_asker in askers:
        await each_asker.ask()
    served: list[str] = []
    most = 0
    while len(served) < len(askers):
        holding = await eventually(lambda: granted_of(askers))
        most = max(most, len(holding))
        for each_asker in holding:
            served.append(each_asker.cluster)
            await each_asker.leave()
    assert most <= 7
    # One that is granted in the same moment may be seen before its neighbour, no further.
    places = [served.index(asked.cluster) - number for number, asked in enumerate(askers)]
    assert max(map(abs, places)) <= 7


async def test_w7_one_cluster_cannot_hold_all_slots(rig: ProjectorRig):
    rig.settings |= {"epochs_at_once": 4, "epochs_per_cluster": 2}
    await rig.started("eu1")
    greedy = [asker(rig, "eu1", f"r{number}") for number in range(10)]
    for each_asker in greedy:
        await each_asker.ask()
    modest = [asker(rig, "us1"), asker(rig, "ap1")]
    for each_asker in modest:
        await each_asker.ask()
        await eventually(each_asker.is_granted)
    assert await number_granted(greedy) == 2


async def test_w7_an_ask_that_is_taken_back_frees_its_slot(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    first, second = asker(rig, "eu1"), asker(rig, "us1")
    await run(first, 5)
    await second.ask()
    await eventually(second.is_received)
    assert not await second.is_granted()
    await first.leave()
    await eventually(second.is_granted)


async def test_w7_an_ask_that_a_restarted_watcher_replaces_frees_its_slot(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    first, second = asker(rig, "eu1"), asker(rig, "us1")
    await run(first, 5)
    await second.ask()
    await eventually(second.is_received)
    await first.ask()  # at the end of the line
    await eventually(second.is_granted)
    assert not await first.is_granted()


# --- sizes --------------------------------------------------------------------------------------


async def test_w7_epochs_together_are_never_larger_than_their_part_of_the_stream(
    rig: ProjectorRig,
):
    rig.settings |= {"stream_max_bytes": 20 * MIB, "epochs_percent": 50}
    await rig.started("eu1")
    sizes = {"a": 4 * MIB, "b": 5 * MIB, "c": 3 * MIB, "d": MIB}
    askers = {name: asker(rig, name) for name in sizes}
    # One after the other: of those that ask within milliseconds any may be received first.
    for name, each_asker in askers.items():
        await each_asker.ask(sizes[name])
        await eventually(each_asker.is_granted if name in "ab" else each_asker.is_received)
    # c does not fit, and d, which would, does not overtake it.
    assert await granted_of(list(askers.values())) == [askers["a"], askers["b"]]
    await askers["a"].leave()
    await eventually(askers["d"].is_granted)
    assert await askers["c"].is_granted()


async def test_w7_an_epoch_larger_than_its_part_of_the_stream_is_granted_alone(rig: ProjectorRig):
    rig.settings |= {"stream_max_bytes": 20 * MIB, "epochs_percent": 50}
    await rig.started("eu1")
    small, huge, next_one = asker(rig, "a"), asker(rig, "b"), asker(rig, "c")
    await run(small, 5)
    await huge.ask(500 * MIB)
    await eventually(huge.is_received)
    await next_one.ask(1)
    await eventually(next_one.is_received)
    assert await number_granted([huge, next_one]) == 0
    await small.leave()
    await eventually(huge.is_granted)
    await huge.begin(6)
    await never(next_one.is_granted)
    await huge.leave()
    await eventually(next_one.is_granted)


async def test_w7_an_unknown_size_is_learned_from_the_snapshot_or_a_share(rig: ProjectorRig):
    rig.settings |= {"stream_max_bytes": 200 * MIB, "epochs_percent": 50, "epochs_at_once": 10}
    await rig.started("eu1")
    unknown = asker(rig, resource="services")
    await unknown.ask()
    await eventually(unknown.is_granted)
    assert await unknown.room() == 10 * MIB
    body = b'{"metadata":{"name":"a","padding":"' + b"x" * 200_000 + b'"}}'
    listed = [source(asker(rig), 5).listed(f"o{n}", n + 1, body=body) for n in range(10)]
    await rig.publish(*listed)
    first_asker = asker(rig)
    await eventually(lambda: _has(rig, 10))
    await asyncio.sleep(0.6)  # what was measured before is not believed for long
    await first_asker.ask()
    await eventually(first_asker.is_granted)
    assert await first_asker.room() == pytest.approx(10 * 200_000, rel=0.3)


async def _has(rig: ProjectorRig, number: int) -> bool:
    return await rig.snapshot.reader.count("eu1", "core/pods") == number


# --- the dead -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_w7_a_killed_watchers_grant_is_taken_back_in_time(rig: ProjectorRig):
    rig.settings |= {"epochs_at_once": 1, "epoch_idle": timedelta(seconds=0.8)}
    await rig.started("eu1")
    dead, next_one = asker(rig, "eu1"), asker(rig, "us1")
    before = expired()
    await run(dead, 5)
    await next_one.ask()
    for number in range(20):  # as long as something of it arrives, it lives
        await rig.publish(source(dead, 5).listed("a", number + 1))
        await asyncio.sleep(0.05)  # the pace of the list
        assert await dead.is_granted()
    await eventually(next_one.is_granted)
    assert await dead.is_gone()
    assert REGISTRY.get_sample_value("fleetbus_grants_expired_total") == before + 1


@pytest.mark.slow
async def test_w7_a_list_that_the_projector_has_not_read_yet_is_not_thought_dead(
    rig: ProjectorRig,
):
    rig.settings |= {"epochs_at_once": 1, "epoch_idle": timedelta(seconds=0.8)}
    await rig.started("eu1")
    running, next_one = asker(rig, "eu1"), asker(rig, "us1")
    await run(running, 5)
    await next_one.ask()
    epoch = source(running, 5)
    await rig.publish(epoch.listed("a", 1))
    await eventually(rig.is_through)
    await rig.redis.config_set("maxmemory", "1")  # it reads, and cannot apply (P9)
    try:
        await rig.publish(epoch.listed("b", 2), epoch.end(2))
        await stays(True, running.is_granted, timedelta(seconds=1))
        assert not await next_one.is_granted()
    finally:
        await rig.redis.config_set("maxmemory", "0")
    await eventually(next_one.is_granted)


async def test_w7_a_grant_that_is_not_begun_is_taken_back_soon(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, grant_begun=timedelta(milliseconds=300))
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    dead, next_one = asker(rig, "eu1"), asker(rig, "us1")
    await dead.ask()
    await next_one.ask()
    await eventually(next_one.is_granted)
    assert await dead.is_gone()


async def test_w7_expired_grants_are_counted_and_logged_once(
    rig: ProjectorRig,
):
    rig.timing = replace(rig.timing, grant_begun=timedelta(milliseconds=100))
    await rig.started("eu1")
    before = expired()
    with capture_logs() as logs:
        for number in range(3):
            await Asker(rig.connections.kv, resource=f"r{number}").ask()
        await eventually(lambda: expired() == before + 3)
    assert [line["event"] for line in logs].count("grant_expired") == 1


def expired() -> float:
    return REGISTRY.get_sample_value("fleetbus_grants_expired_total") or 0


# --- restarts -----------------------------------------------------------------------------------


async def test_w7_a_restarted_projector_keeps_to_the_standing_grants(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 2
    await rig.started("eu1")
    running = [asker(rig, name) for name in "ab"]
    for number, each_asker in enumerate(running):
        await run(each_asker, 5 + number)
    waiting = [asker(rig, name) for name in "cd"]
    await waiting[0].ask()
    await eventually(waiting[0].is_received)
    await rig.stop()
    await waiting[1].ask()
    await rig.publish_epoch(source(running[0], 5), a=1)
    await stays(0, lambda: number_granted(waiting))
    rig.start()
    await eventually(running[0].is_gone)  # its end came while nobody read
    await eventually(waiting[0].is_granted)
    await waiting[0].begin(7)
    await eventually(waiting[1].is_received)
    await never(waiting[1].is_granted)
    assert await running[1].is_granted()


async def test_w7_who_waited_before_the_restart_is_served_before_who_asked_later(
    rig: ProjectorRig,
):
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    running, early, late = asker(rig, "z"), asker(rig, "y"), asker(rig, "a")
    await run(running, 5)
    await early.ask()
    await eventually(early.is_received)
    await rig.stop()
    await late.ask()
    await running.leave()
    rig.start()
    await eventually(early.is_granted)
    assert not await late.is_granted()


async def test_w7_epochs_that_went_ahead_meanwhile_count_like_granted_ones(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 1
    ahead, next_one = asker(rig, "eu1"), asker(rig, "us1")
    await ensure_bucket(rig.bus)
    await ahead.ask(epoch=5)
    await rig.started("eu1")
    await next_one.ask()
    await eventually(ahead.is_granted)
    await eventually(next_one.is_received)
    assert not await next_one.is_granted()
    await rig.publish_epoch(source(ahead, 5), a=1)
    await eventually(next_one.is_granted)


@pytest.mark.slow
async def test_w7_standing_grants_survive_a_lost_bucket(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    running, next_one = asker(rig, "eu1"), asker(rig, "us1")
    await run(running, 5)
    await asyncio.sleep(0.1)  # read by the projector too
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await eventually(lambda: stream_info(rig.bus, f"KV_{KV_BUCKET}"))
    await next_one.ask()
    await eventually(next_one.is_received)
    assert not await next_one.is_granted()
    await eventually(running.is_granted)


async def test_w7_two_projectors_grant_no_more_than_one(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 3
    await rig.started("eu1")
    rig.start("second")
    askers = [asker(rig, f"c{number}") for number in range(12)]
    for each_asker in askers:
        await each_asker.ask()
    served = 0
    while served < len(askers):
        holding = await eventually(lambda: granted_of(askers))
        # Both may give the same slot away in the same moment.
        assert len(holding) <= 6
        for each_asker in holding:
            await each_asker.leave()
            served += 1


# --- those who wait -----------------------------------------------------------------------------


@pytest.mark.slow
async def test_w7_who_waits_gets_a_sign_of_life_well_within_its_patience(rig: ProjectorRig):
    rig.settings["epochs_at_once"] = 1
    await rig.started("eu1")
    running, waiting = asker(rig, "eu1"), asker(rig, "us1")
    await run(running, 5)
    await waiting.ask(patience=1.2)
    signs: list[GrantAnswer] = []

    async def has_signs() -> bool:
        ask = await waiting.found()
        if ask is not None and ask.answer is not None and ask.answer not in signs:
            signs.append(ask.answer)
        return len(signs) >= 4

    await eventually(has_signs)
    assert len({sign.received for sign in signs}) == 1, "its place in the line stays"
    assert all(later.at - sign.at < 1_200 for sign, later in itertools.pairwise(signs))


async def test_w7_garbage_in_a_key_holds_up_nobody_and_is_written_over(ready: ProjectorRig):
    first_asker = asker(ready)
    await ready.connections.kv.put(kv_grant("eu1", "core", "services"), b"\xff")
    await ready.connections.kv.put(kv_grant("eu1", "core", "pods"), b'{"requests": 7}')
    await ready.connections.kv.put("eu1.grant.x.y.z", b"{}")
    await first_asker.ask()
    await eventually(first_asker.is_granted)


async def test_w7_what_waits_and_what_runs_is_counted_from_the_start(rig: ProjectorRig):
    names = ("fleetbus_epochs_waiting", "fleetbus_epochs_granted", "fleetbus_epochs_granted_bytes")
    assert all(REGISTRY.get_sample_value(name) is not None for name in names)
    rig.settings |= {"epochs_at_once": 1, "stream_max_bytes": 20 * MIB}
    await rig.started("eu1")
    await run(asker(rig, "eu1"), 5)
    await asker(rig, "us1").ask()

    def gauges() -> list[float | None]:
        return [REGISTRY.get_sample_value(name) for name in names]

    await eventually(lambda: gauges() == [1, 1, 10 * MIB])


async def test_an_empty_key_is_nothing_to_grant(ready: ProjectorRig):
    first_asker = asker(ready)
    await run(first_asker, 5)
    await first_asker.leave()
    assert (await read_grant_requests(ready.connections.kv, first_asker.key)).requests == ()
    await eventually(lambda: REGISTRY.get_sample_value("fleetbus_epochs_granted") == 0)
