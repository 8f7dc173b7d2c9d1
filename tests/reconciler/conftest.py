"""The fixtures of this folder; they are defined in tests/support."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from support.rigs.projector import ProjectorRig, projector_rig, shorten_intervals


@pytest.fixture
def quick_projector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short times."""
    shorten_intervals(monkeypatch)
    monkeypatch.setattr("fleetbus_reconciler.projector.sweeper._RETRY", timedelta(seconds=0.05))


@pytest.fixture
async def rig(
    nats_url: str,
    valkey_url: str,
    quick_projector: None,  # noqa: ARG001
) -> AsyncGenerator[ProjectorRig]:
    """A projector with short times, not started yet."""
    async with projector_rig(nats_url, valkey_url) as opened:
        yield opened
