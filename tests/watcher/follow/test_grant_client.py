"""The watcher asks before it lists (rule W7); the test answers as the projector does."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from fleetbus.bus.jetstream import call_jetstream, ensure_bucket
from fleetbus.watchers.grant_requests import GrantRequest, read_grant_requests
from fleetbus.watchers.resync import ResyncRequest, request_resync
from fleetbus_emulator.apiserver import Abort, Delay, Fail, Hang
from fleetbus_proto.events import EpochEnd, Event
from fleetbus_proto.keys import KV_BUCKET, kv_grant
from fleetbus_proto.resources import parse_resource
from fleetbus_proto.subjects import STREAM
from support.eventually import eventually, stays
from support.rigs.watcher import Rig
from support.wire.grant_messages import Asker

LONG: dict[str, Any] = {"grant_patience": timedelta(minutes=1)}
SLOW_BACKOFF: dict[str, Any] = {
    "backoff_first": timedelta(seconds=30),
    "backoff_cap": timedelta(seconds=30),
}
KINDS = ("configmaps", "services", "pods")


def asker_of(rig: Rig, resource: str = "configmaps", **who: str) -> Asker:
    return Asker(rig.kv, "alpha", resource, **who)


async def grant(rig: Rig, asker: Asker, room: int = 0) -> None:
    await eventually(asker.is_there)
    await asker.grant(rig.bus, room)


async def state_of(rig: Rig) -> tuple[str, str]:
    status = await rig.status()
    return (status.state, status.reason) if status is not None else ("", "")


# --- requests -----------------------------------------------------------------------------------


async def test_w7_nothing_is_claimed_and_nothing_listed_before_the_projector_says_yes(rig: Rig):
    rig.write("a")
    rig.timing = replace(rig.timing, grant_first_poll=timedelta(milliseconds=20))
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    await stays([], lambda: rig.requests("list"))  # it looks by itself meanwhile
    ask = await asker.found()
    assert ask is not None
    assert (ask.replica, ask.scope, ask.patience, ask.bytes, ask.epoch) == ("r1", "", 60, 0, 0)
    assert abs(ask.since / 1000 - time.time()) < 10
    assert await rig.kv.get("alpha.epoch.core.configmaps") is None
    await asker.grant(rig.bus)
    await eventually(rig.ends)
    assert await rig.is_mirrored()


async def test_w7_a_grant_is_noticed_at_once(rig: Rig):
    seldom = timedelta(minutes=1)  # it does not poll
    rig.timing = replace(rig.timing, grant_first_poll=seldom, grant_last_poll=seldom)
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    await asker.grant(rig.bus)
    await eventually(asker.is_begun)


async def test_w7_an_answer_whose_message_was_lost_is_found_by_looking(rig: Rig):
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    await asker.grant(None)
    await eventually(rig.ends)


async def test_w7_the_ask_tells_which_epoch_runs_until_the_projector_has_read_it(rig: Rig):
    asker = asker_of(rig)
    rig.start(**LONG)
    await grant(rig, asker)
    end = (await eventually(rig.ends))[0]
    await eventually(rig.checkpoint)
    ask = await asker.found()
    assert ask is not None
    assert ask.epoch == end.epoch.id


async def test_w7_the_next_ask_says_how_large_the_last_epoch_was(rig: Rig):
    for number in range(30):
        rig.write(f"a{number}", "x" * 100 * number)
    asker = asker_of(rig)
    rig.start(page_size=7, heartbeat_busy=timedelta(minutes=1), **LONG)
    await grant(rig, asker)
    first = (await eventually(rig.ends))[0]
    stored = (await call_jetstream(rig.bus, f"STREAM.INFO.{STREAM}"))["state"]["bytes"]
    await asker.leave()
    request = ResyncRequest(min_epoch=first.epoch.id + 1)
    await request_resync(rig.bus, rig.kv, "alpha", parse_resource("v1/configmaps"), request)
    await eventually(asker.is_there)
    ask = await asker.found()
    assert ask is not None
    assert ask.bytes == pytest.approx(stored, rel=0.15)


async def test_w15_two_replicas_ask_side_by_side_and_one_of_them_lists(rig: Rig):
    rig.write("a")
    first, second = asker_of(rig, replica="r1"), asker_of(rig, replica="r2")
    rig.start(replica="r1", **LONG)
    rig.start(replica="r2", **LONG)
    await eventually(first.is_there)
    await eventually(second.is_there)
    await second.grant(rig.bus)
    await eventually(second.is_begun)
    await eventually(first.is_gone)
    await eventually(lambda: rig.cluster.open_watches == 2)
    assert len(rig.requests("list")) == 1
    assert len(await rig.ends()) == 1


async def test_w7_a_restarted_watcher_asks_in_the_place_of_its_dead_self(rig: Rig):
    asker = asker_of(rig)
    dead = await asker.ask(epoch=5)
    rig.start(**LONG)

    async def asks() -> list[GrantRequest]:
        return list((await read_grant_requests(rig.kv, asker.key)).requests)

    await eventually(lambda: _has_another(asker, dead))
    assert len(await asks()) == 1


async def _has_another(asker: Asker, ask: GrantRequest) -> bool:
    found = await asker.found()
    return found is not None and not found.is_same(ask)


@pytest.mark.slow
async def test_w7_a_lost_bucket_costs_another_ask(rig: Rig):
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    await call_jetstream(rig.bus, f"STREAM.DELETE.KV_{KV_BUCKET}")
    await ensure_bucket(rig.bus)
    await eventually(asker.is_there)
    await asker.grant(rig.bus)
    await eventually(rig.ends)


async def test_w7_without_patience_nobody_is_asked(rig: Rig):
    async with rig.watching():
        assert await rig.kv.get(kv_grant("alpha", "core", "configmaps")) is None


# --- giving back --------------------------------------------------------------------------------


async def test_w8_an_abandoned_epoch_gives_its_grant_back(rig: Rig):
    for number in range(3):
        rig.write(f"a{number}")
    asker = asker_of(rig)
    # The next attempt comes late, so what is seen is not its ask.
    rig.start(page_size=2, **SLOW_BACKOFF, **LONG)
    rig.cluster.faults.add(Fail(500), verb="list", resource="configmaps", skip=1)
    await grant(rig, asker)
    await eventually(asker.is_gone)
    assert len(rig.requests("list")) == 2
    assert await rig.ends() == []


async def test_w16_an_epoch_without_an_end_gives_its_grant_back(rig: Rig):
    name = "x" * 4000  # no subject can carry it
    rig.cluster.create(
        "rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": name}, "rules": []}
    )
    asker = asker_of(rig, "clusterroles", group="rbac.authorization.k8s.io")
    rig.start(resources=("clusterroles",), **SLOW_BACKOFF, **LONG)
    await grant(rig, asker)
    await eventually(asker.is_gone)
    assert len(rig.requests("list", "clusterroles")) == 1
    assert await rig.ends() == []


async def test_w21_a_stop_gives_back_what_it_holds_and_what_it_waits_for(rig: Rig):
    running, waiting = asker_of(rig), asker_of(rig, "services")
    rule = rig.cluster.faults.add(Hang(), verb="list", resource="configmaps")
    task = rig.start(resources=("configmaps", "services"), **LONG)
    await grant(rig, running)
    await eventually(lambda: rule.hits)
    await eventually(waiting.is_there)
    await rig.stop(task)
    assert await running.is_gone()
    assert await waiting.is_gone()


async def test_w7_a_cluster_that_is_down_asks_for_nothing(rig: Rig):
    asker = asker_of(rig)
    # The first response identifies the cluster, the second is requested before the list (W13).
    rule = rig.cluster.faults.add(Abort(), verb="get", resource="namespaces", skip=1)
    rig.start(**LONG)
    await eventually(lambda: rule.hits >= 3)
    assert await asker.is_gone()


async def test_w7_a_grant_that_was_taken_back_is_not_used(rig: Rig):
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    await asker.leave()  # the projector thought it dead
    await eventually(asker.is_there)
    assert rig.requests("list") == []
    await asker.grant(rig.bus)
    await eventually(rig.ends)


# --- a size that was wrong ----------------------------------------------------------------------


async def size_without_answer(asker: Asker) -> int:
    ask = await asker.found()
    return ask.bytes if ask is not None and ask.answer is None else 0


async def test_w7_an_epoch_that_outgrows_its_grant_is_asked_for_again_with_its_size(rig: Rig):
    for number in range(40):
        rig.write(f"a{number:02}", "x" * 2000)
    asker = asker_of(rig)
    rig.start(page_size=4, **LONG)
    await grant(rig, asker, room=20_000)
    needed = await eventually(lambda: size_without_answer(asker))
    assert 40 * 2_500 < needed < 40 * 5_000
    assert len(rig.requests("list")) == 1, "the first page shows it"
    assert await rig.ends() == []
    await asker.grant(rig.bus, room=needed)
    assert (await eventually(rig.ends))[0].count == 40


async def test_w7_a_list_whose_length_the_server_hides_is_asked_for_again_on_the_way(rig: Rig):
    for number in range(40):
        metadata = {"name": f"a{number:02}", "labels": {"app": "x"}}
        obj = {"metadata": metadata, "data": {"k": "x" * 2000}}
        rig.cluster.create("v1/configmaps", obj, "default")
    selection = {"resource": "configmaps", "labelSelector": "app=x"}
    rig.start(page_size=4, resources=(selection,), **LONG)
    key = kv_grant("alpha", "core", "configmaps")

    async def asks() -> tuple[GrantRequest, ...]:
        return (await read_grant_requests(rig.kv, key)).requests

    asker = asker_of(rig, scope=(await eventually(asks))[0].scope)
    room, tries = 30_000, 0
    while not await rig.ends():
        assert tries < 4, "each ask is at least twice as large as what did not suffice"
        await asker.grant(rig.bus, room=room)
        room = await eventually(lambda: _size_or_end(rig, asker))
        tries += 1
    assert tries > 1
    assert (await rig.ends())[0].count == 40


async def _size_or_end(rig: Rig, asker: Asker) -> int:
    return len(await rig.ends()) or await size_without_answer(asker)


async def test_w7_a_little_growth_is_no_reason_to_ask_again(rig: Rig):
    for number in range(10):
        rig.write(f"a{number}", "x" * 2000)
    asker = asker_of(rig)
    rig.start(page_size=4, **LONG)
    await grant(rig, asker, room=25_000)  # it needs about 31,000
    await eventually(rig.ends)
    assert len(rig.requests("list")) == 3


# --- a projector that is silent -----------------------------------------------------------------


@pytest.mark.slow
async def test_w7_without_an_answer_epochs_go_ahead_one_at_a_time(rig: Rig):
    rig.cluster.create("v1/services", {"metadata": {"name": "s"}, "spec": {"ports": []}}, "default")
    rig.write("a")
    rig.write("b")
    unanswered = ("fleetbus_watcher_epochs_unanswered_total", {"cluster": "alpha"})
    before = REGISTRY.get_sample_value(*unanswered) or 0
    rig.cluster.faults.add(Delay(timedelta(seconds=0.15)), verb="list")
    patience = timedelta(seconds=1)
    begun = time.monotonic()
    rig.start(resources=KINDS, page_size=1, grant_patience=patience)
    await eventually(rig.ends)
    first = time.monotonic()
    assert first - begun >= patience.total_seconds()
    await eventually(lambda: _has_ends(rig, len(KINDS)))
    # Only the first waits so long: the others know that nobody answers, and wait for its list.
    assert time.monotonic() - first < (len(KINDS) - 1) * patience.total_seconds()
    stored = [stored.message for stored in await rig.stored()]
    order = [m.resource for m in stored if isinstance(m, Event | EpochEnd)]
    assert len(_runs(order)) == len(KINDS), f"two lists ran at once: {order}"
    assert REGISTRY.get_sample_value(*unanswered) == before + len(KINDS)
    for kind in KINDS:  # a projector that comes back sees what runs, or ran
        assert await asker_of(rig, kind).is_begun()


def _runs(order: list[str]) -> list[str]:
    return [name for at, name in enumerate(order) if not at or order[at - 1] != name]


async def _has_ends(rig: Rig, number: int) -> bool:
    return len(await rig.ends()) >= number


@pytest.mark.slow
async def test_w7_a_projector_that_gives_signs_of_life_is_waited_for(rig: Rig):
    asker = asker_of(rig)
    rig.start(grant_patience=timedelta(seconds=0.8))
    await eventually(asker.is_there)
    async with giving_signs(rig, asker):
        await stays([], lambda: rig.requests("list"), timedelta(seconds=1.2))
    await eventually(rig.ends)  # and no longer


@asynccontextmanager
async def giving_signs(rig: Rig, *askers: Asker) -> AsyncGenerator[None]:
    """So many that a busy machine, too, lets one through within a patience."""

    async def give() -> None:
        for at in itertools.count(1):
            for asker in askers:
                await asker.give_sign(rig.bus, at)
            await asyncio.sleep(0.05)  # the pace of the signs

    task = asyncio.create_task(give())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.slow
async def test_w7_a_projector_that_answers_again_is_asked_again(rig: Rig):
    rule = rig.cluster.faults.add(Delay(timedelta(seconds=0.3)), verb="list")
    rig.start(resources=KINDS, lists_at_once=3, grant_patience=timedelta(seconds=0.8))
    await eventually(lambda: rule.hits)
    waiting = [it for it in (asker_of(rig, kind) for kind in KINDS) if not await it.is_begun()]
    assert len(waiting) == 2
    async with giving_signs(rig, *waiting):
        await eventually(rig.ends)
        await stays(1, lambda: rule.hits)  # it is nobody's turn to go ahead
    for asker in waiting:
        await asker.grant(rig.bus)
    await eventually(lambda: _has_ends(rig, 3))


# --- what is reported----------------------------------------------------------------------------


async def test_w7_a_long_wait_is_reported_and_counted(rig: Rig):
    rig.timing = replace(rig.timing, grant_reported_after=timedelta(milliseconds=300))
    waiting = ("fleetbus_watcher_epochs_waiting", {"cluster": "alpha"})
    granted = ("fleetbus_watcher_epochs_granted", {"cluster": "alpha"})
    asker = asker_of(rig)
    rig.start(**LONG)
    await eventually(asker.is_there)
    assert REGISTRY.get_sample_value(*granted) == 0
    assert REGISTRY.get_sample_value(*waiting) == 1
    await eventually(lambda: _is_reported(rig))
    await asker.grant(rig.bus)
    await eventually(rig.ends)
    assert REGISTRY.get_sample_value(*waiting) == 0
    await eventually(lambda: _is_watching(rig))


async def _is_reported(rig: Rig) -> bool:
    return await state_of(rig) == ("listing", "WaitingForGrant")


async def _is_watching(rig: Rig) -> bool:
    return await state_of(rig) == ("watching", "")
