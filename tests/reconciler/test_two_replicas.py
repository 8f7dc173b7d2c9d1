"""Two replicas of a cluster's watcher: who does worse changes nothing (rule W15)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from fleetbus.snapshot.records import ResourceState
from fleetbus_proto.events import Heartbeat
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from support.rigs.projector import ProjectorRig, completed, heartbeat, now


def of_peer(*, connected: bool = True, **options: Any) -> Heartbeat:
    """A heartbeat of the other replica."""
    reason = "" if connected else "Unreachable"
    beat = heartbeat(**options)
    return msgspec.structs.replace(beat, replica="eu1-1", connected=connected, reason=reason)


@pytest.mark.parametrize(
    "worse",
    [{"watch_open": False}, {"state": "failing", "message": "403"}, {"state": "listing"}],
    ids=["starts", "fails", "lists"],
)
async def test_w15_a_replica_that_does_worse_changes_nothing_while_the_other_one_reports(
    rig: ProjectorRig, state: FleetState, worse: dict[str, Any]
) -> None:
    worse = {"watch_open": False} | worse
    await state.apply_heartbeat(heartbeat(at=now(timedelta(seconds=12))))
    await completed(rig, state)
    await state.apply_heartbeat(heartbeat(at=now(timedelta(seconds=10))))
    await state.apply_heartbeat(of_peer(connected=False, **worse))
    assert await rig.state() is ResourceState.SYNCED
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert (cluster.connected, cluster.reason) == (True, "")
    # The one that did well says otherwise now.
    await state.apply_heartbeat(
        msgspec.structs.replace(of_peer(connected=False, **worse), replica="eu1-0")
    )
    assert await rig.state() is ResourceState.STALE
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert (cluster.connected, cluster.reason) == (False, "Unreachable")


async def test_w15_a_replica_that_starts_during_the_first_list_changes_nothing(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat())
    await state.apply_heartbeat(of_peer(state="listing", watch_open=False))
    await completed(rig, state)
    await state.apply_heartbeat(of_peer(watch_open=False))
    assert await rig.state() is ResourceState.SYNCED
    await state.apply_heartbeat(heartbeat(watch_open=False))
    assert await rig.state() is ResourceState.STALE


async def test_w15_a_replica_that_is_gone_vouches_for_nothing(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat(at=now(timedelta(seconds=40))))
    await completed(rig, state)
    await state.apply_heartbeat(heartbeat(at=now(timedelta(seconds=30))))
    await state.apply_heartbeat(of_peer(connected=False, watch_open=False))
    assert await rig.state() is ResourceState.STALE
    cluster = await rig.snapshot.reader.cluster("eu1")
    assert cluster is not None
    assert not cluster.connected


async def test_w15_a_new_incarnation_begins_anew_for_both(
    rig: ProjectorRig, state: FleetState
) -> None:
    await state.apply_heartbeat(heartbeat())
    await completed(rig, state)
    await state.apply_heartbeat(heartbeat())
    await state.apply_heartbeat(of_peer(incarnation=2, state="listing", watch_open=False))
    assert await rig.state() is ResourceState.STALE
