"""The fixtures of this folder; they are defined in tests/support."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from support.rigs.projector import ProjectorRig, projector_rig


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
