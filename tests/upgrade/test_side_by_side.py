"""This version beside the one before, forwards and back, in either order: `make test-upgrade`.

`.ci/run` runs the first of them, `make test-upgrade-cut`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from upgrade.before import version_before
from upgrade.two_versions import (
    AGENT,
    DISTRIBUTOR,
    MEMBER_WATCHER,
    PROJECTOR,
    QUERY_API,
    ROLES,
    WATCHERS,
    WORKER,
    TwoVersions,
    two_versions,
)

OLD, NEW = "old", "new"
HUB_ROLES = (PROJECTOR, WORKER, DISTRIBUTOR, QUERY_API)
MEMBER_ROLES = (WATCHERS, MEMBER_WATCHER, AGENT)
READERS_FIRST = (PROJECTOR, WORKER, DISTRIBUTOR, QUERY_API, *MEMBER_ROLES)
WATCHERS_FIRST = (*reversed(MEMBER_ROLES), QUERY_API, DISTRIBUTOR, WORKER, PROJECTOR)


@pytest.fixture
def programs() -> dict[str, Path]:
    return {OLD: version_before().programs, NEW: Path(sysconfig.get_path("scripts"))}


@pytest.mark.full
@pytest.mark.timeout(3000)
async def test_the_members_and_the_hub_are_upgraded_one_after_the_other_and_back(
    tmp_path: Path, nats_url: str, valkey_url: str, programs: dict[str, Path]
):
    async with two_versions(tmp_path, nats_url, valkey_url, programs) as fleet:
        await fleet.start(OLD)
        await fleet.in_step()
        await fleet.roll(NEW, *MEMBER_ROLES)  # watchers and agent new, projector and callers old
        await fleet.roll(NEW, *HUB_ROLES)
        await fleet.roll(OLD, *MEMBER_ROLES)  # watchers and agent old, projector and callers new
        await fleet.roll(OLD, *HUB_ROLES)


@pytest.mark.full
@pytest.mark.parametrize("order", [READERS_FIRST, WATCHERS_FIRST], ids=["readers", "watchers"])
@pytest.mark.timeout(6000)
async def test_every_service_is_upgraded_on_its_own_in_either_order_and_back(
    tmp_path: Path,
    nats_url: str,
    valkey_url: str,
    programs: dict[str, Path],
    order: tuple[str, ...],
):
    assert set(order) == set(ROLES)
    async with two_versions(tmp_path, nats_url, valkey_url, programs) as fleet:
        await fleet.start(OLD)
        await fleet.in_step()
        await _roll_each(fleet, NEW, order)
        await _roll_each(fleet, OLD, order)


async def _roll_each(fleet: TwoVersions, version: str, order: tuple[str, ...]) -> None:
    for role in order:
        await fleet.roll(version, role)
