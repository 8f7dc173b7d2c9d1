from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from support.rigs.watcher import Rig, rig_for


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    """An emulated cluster and the shared NATS; start a watcher with `rig.start`."""
    async with rig_for(nats_url) as opened:
        yield opened
