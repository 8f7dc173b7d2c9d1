from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest
from watcher_rig import Rig, rig_for

# The typed models of kubernetes_asyncio cost two seconds; nothing here needs them.
os.environ.setdefault("FLEETBUS_LIGHT_KUBE", "1")


@pytest.fixture
async def rig(nats_url: str) -> AsyncGenerator[Rig]:
    """An emulated cluster and the shared NATS; start a watcher with `rig.start`."""
    async with rig_for(nats_url) as made:
        yield made
