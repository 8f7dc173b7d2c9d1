"""A query API that may be asked to join and unjoin clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.rigs.membership import MembershipRig, membership_rig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from redis.asyncio import Redis


@pytest.fixture
async def rig(
    redis: Redis, valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[MembershipRig]:
    monkeypatch.setenv("FLEETBUS_ALLOW_LOOPBACK", "1")  # the members are on this machine
    async with membership_rig(redis, valkey_url, tmp_path) as rig:
        await rig.api.start()
        yield rig
