"""Requests whose runs used what was not synced yet are enqueued once it is (rule P18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleetbus.controller.controller import Controller
from fleetbus.intake import unsynced as module
from fleetbus.intake.unsynced import UnsyncedResources
from fleetbus.kube.requests import used_path
from fleetbus.reconcile import Request
from fleetbus.run.current import Run, running
from fleetbus.snapshot.records import ResourceRecord, ResourceState
from fleetbus_proto.keys import queue
from support.stores.snapshot import Snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from fleetbus.intake.unsynced import Pair

REQUEST = Request("parents", "hub", "prod", "web")
PODS, MAPS = ("eu1", "core/pods"), ("eu1", "core/configmaps")


@pytest.fixture
async def snapshot(redis: Redis) -> Snapshot:
    prepared = Snapshot(redis)
    await prepared.set_up("eu1", "us1")
    return prepared


def noted_by(
    snapshot: Snapshot, name: str = "parents", *, repaired_by: str = "", **options: int
) -> UnsyncedResources:
    controller = Controller(name)
    if repaired_by:
        controller.watch("v1/pods")
        controller.repaired_by = repaired_by
    else:
        controller.watch_owned("*")
    return UnsyncedResources(controller, redis=snapshot.redis, reader=snapshot.reader, **options)


async def put(snapshot: Snapshot, pair: Pair, state: ResourceState) -> None:
    group, plural = pair[1].split("/")
    record = ResourceRecord(group=group, version="v1", plural=plural, state=state, epoch="1 1")
    await snapshot.writer.put_resource_state(pair[0], record)


async def test_p18_a_request_waits_until_all_it_has_used_is_synced(snapshot: Snapshot):
    noted = noted_by(snapshot)
    await put(snapshot, PODS, ResourceState.LISTING)
    await noted.note(REQUEST, [PODS, MAPS])
    assert await noted.take_synced() == {}
    await put(snapshot, PODS, ResourceState.SYNCED)
    [(request, notes)] = (await noted.take_synced()).items()
    assert request == REQUEST
    assert await noted.take_synced(), "a crash before it is enqueued loses nothing"
    await noted.forget(notes)
    assert await noted.take_synced() == {}
    await put(snapshot, MAPS, ResourceState.SYNCED)
    [(request, notes)] = (await noted.take_synced()).items()
    await noted.forget(notes)
    assert (request, await noted.take_synced()) == (REQUEST, {})


async def test_p18_what_is_synced_or_watched_nowhere_is_not_noted(snapshot: Snapshot):
    noted = noted_by(snapshot)
    await put(snapshot, PODS, ResourceState.SYNCED)
    await noted.note(REQUEST, [PODS, ("eu1", "core/secrets"), ("hub", "core/events")])
    plain = Controller("parents")
    plain.watch("v1/pods")
    without = UnsyncedResources(plain, redis=snapshot.redis, reader=snapshot.reader)
    await without.note(REQUEST, [MAPS])
    assert not await snapshot.redis.exists(queue("parents", "unsynced"))


async def test_p18_another_controller_repairs_it_on_the_cluster(snapshot: Snapshot):
    writes, repairs = noted_by(snapshot, repaired_by="repairs"), noted_by(snapshot, "repairs")
    await writes.note(REQUEST, [MAPS])
    await put(snapshot, MAPS, ResourceState.SYNCED)
    assert await writes.take_synced() == {}
    assert list(await repairs.take_synced()) == [Request("repairs", "eu1", "prod", "web")]


async def test_p18_notes_are_bounded_in_number_and_time(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
):
    noted, key = noted_by(snapshot, most=5), queue("parents", "unsynced")
    for number in range(8):
        await noted.note(REQUEST, [("eu1", f"example.org/r{number}")])
    assert await snapshot.redis.zcard(key) == 5
    await noted.forget([])
    assert await snapshot.redis.zcard(key) == 5
    monkeypatch.setattr(module, "now_ms", lambda: 1 << 60)
    await noted.forget([])
    assert not await snapshot.redis.exists(key)


def test_p18_a_run_records_what_it_uses_live():
    with running(Run(REQUEST)) as run:
        assert used_path("eu1", "v1/pods", "prod", "web") == "/api/v1/namespaces/prod/pods/web"
        used_path("", "v1/configmaps", "prod", "web")  # a client without a name
    used_path("eu1", "v1/services", "prod", "web")
    assert run.used == {PODS}
