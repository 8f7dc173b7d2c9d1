"""Tombstones go by themselves, also in a full store; the projector's part (rules P3, P15)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fleetbus_proto.keys import SnapshotKeys
from support.eventually import eventually
from support.rigs.projector import PODS, ProjectorRig, heartbeat
from support.stores.snapshot import Source, full_store

FIRST = Source(rank=(100, 1_700_000_000_000))
KEPT = {"keep": ("uid-keep", 10)}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_TICK", "_INTERVAL", "_INTERVAL_WHEN_FULL"):
        monkeypatch.setattr(
            f"fleetbus_reconciler.projector.tombstones.{name}", timedelta(milliseconds=20)
        )


async def churned(rig: ProjectorRig, count: int = 5) -> None:
    """A cluster whose watch is healthy, and whose pods come and go."""
    await rig.started("eu1")
    await rig.publish_epoch(FIRST, keep=10)
    await rig.publish(heartbeat())
    for n in range(count):
        await rig.publish(FIRST.added(f"job-{n}", 200 + n), FIRST.deleted(f"job-{n}", 300 + n))
    await eventually(rig.is_through)
    assert await tombstones(rig) == count


async def tombstones(rig: ProjectorRig) -> int:
    return await rig.redis.zcard(SnapshotKeys().deleted("eu1", PODS))


async def last_states(rig: ProjectorRig) -> int:
    return await rig.redis.hlen(SnapshotKeys().tombstones("eu1", PODS))


async def has_none(rig: ProjectorRig) -> bool:
    return await tombstones(rig) == 0


async def has_no_last_states(rig: ProjectorRig) -> bool:
    return await last_states(rig) == 0


async def test_p3_p15_a_clean_audit_frees_the_tombstones_of_a_watch_that_never_lists_again(
    rig: ProjectorRig,
):
    await churned(rig)
    await rig.publish(FIRST.audit(400, 1, KEPT))
    await eventually(lambda: has_none(rig))
    assert await rig.snapshot.names() == ["keep"]


async def test_p3_p15_an_audit_that_turns_out_clean_frees_tombstones_too(rig: ProjectorRig):
    await churned(rig)
    await rig.publish(FIRST.audit(400, 1, {**KEPT, "new": ("uid-new", 350)}))
    await rig.publish(FIRST.added("new", 350), heartbeat(resource_version="400"))
    await eventually(lambda: has_none(rig))
    assert await rig.snapshot.names() == ["keep", "new"]
    assert await rig.resync_request() is None


async def test_p3_last_states_are_kept_for_a_while_only(rig: ProjectorRig):
    rig.settings["last_state_kept"] = timedelta(hours=1)
    await churned(rig)
    assert await last_states(rig) == 5
    await rig.stop()
    rig.settings["last_state_kept"] = timedelta(seconds=0.01)
    rig.start()
    await eventually(lambda: has_no_last_states(rig))
    assert await tombstones(rig) == 5


async def test_p3_a_full_store_drops_last_states_and_is_freed_by_a_new_list(rig: ProjectorRig):
    await churned(rig)
    async with full_store(rig.redis):
        await eventually(lambda: has_no_last_states(rig))
        assert await tombstones(rig) == 5
        newer = Source(rank=(400, FIRST.rank[1] + 1))
        await rig.publish_epoch(newer, keep=10)
        await eventually(lambda: has_none(rig))
        await rig.synced(epoch=f"400 {newer.rank[1]}")
        await eventually(rig.is_through)
    assert await rig.snapshot.names() == ["keep"]
