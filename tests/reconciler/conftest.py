"""The fixtures of this folder; they are defined in tests/support."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from fleetbus.bus.jetstream import ensure_bucket
from fleetbus_reconciler.fleet_status.fleet_state import FleetState
from fleetbus_reconciler.fleet_status.resync_requests import ResyncRequests
from support.rigs.projector import (
    Clock,
    ProjectorRig,
    fleet_state,
    projector_rig,
    resync_requests,
)


@pytest.fixture
def quick_projector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times."""
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(seconds=0.05))


@pytest.fixture
async def rig(
    nats_url: str,
    valkey_url: str,
    quick_projector: None,  # noqa: ARG001
) -> AsyncGenerator[ProjectorRig]:
    """A projector with short times, not started yet."""
    async with projector_rig(nats_url, valkey_url) as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def resyncs(rig: ProjectorRig, clock: Clock) -> ResyncRequests:
    return resync_requests(rig, clock=clock)


@pytest.fixture
async def state(rig: ProjectorRig, resyncs: ResyncRequests) -> FleetState:
    """A state without a projector: the test calls it."""
    await ensure_bucket(rig.bus)
    await rig.connections.writer.ensure_generation()
    fleet_reader = fleet_state(rig, resyncs)
    rig.provider.tell("eu1", "us1", region="eu")
    await rig.connections.clusters.known()
    await fleet_reader.converge()
    return fleet_reader
