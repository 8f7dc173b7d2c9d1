from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from support.rigs.watcher import Rig, rig_for


@pytest.fixture(autouse=True)
def short_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten what nearly every test here would wait for."""
    monkeypatch.setattr("fleetbus_watcher.heartbeats._SETTLES", timedelta(milliseconds=40))


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    """An emulated cluster and the shared NATS; start a watcher with `rig.start`."""
    async with rig_for(nats_url) as opened:
        yield opened
