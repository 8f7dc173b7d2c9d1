"""The fixtures of this folder; what they do stands in tests/support."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from projector_rig import ProjectorRig, projector_rig


@pytest.fixture
def quick_projector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times."""
    for name, seconds in (("_SLOW_TICK", 0.1), ("_TICK", 0.025), ("_PAUSE", 0.05), ("_LOOK", 0.1)):
        monkeypatch.setattr(
            f"fleetbus_reconciler.projector.projector.{name}", timedelta(seconds=seconds)
        )
    monkeypatch.setattr("fleetbus_reconciler.projector.sweeper._PAUSE", timedelta(seconds=0.05))
    monkeypatch.setattr("fleetbus.bus.consume.RETRY_PAUSE", timedelta(seconds=0.05))


@pytest.fixture
async def rig(
    nats_url: str,
    valkey_url: str,
    quick_projector: None,  # noqa: ARG001
) -> AsyncGenerator[ProjectorRig]:
    """A projector with short times, not started yet."""
    async with projector_rig(nats_url, valkey_url) as made:
        yield made
