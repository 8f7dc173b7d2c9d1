"""W18 and P15 with a real watcher and a real projector: changes that no watch sent are repaired."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.snapshot.reads.query import ListQuery
from fleetbus_emulator.apiserver import DropEvents
from support.eventually import eventually
from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable[Rig]]
MAPS = "v1/configmaps"
QUICK: dict[str, Any] = {
    "audit_shortest": timedelta(seconds=1),
    "audit_longest": timedelta(seconds=1),
    "heartbeat_busy": timedelta(milliseconds=100),
    "heartbeat_idle": timedelta(milliseconds=100),
}


@pytest.mark.full  # tests/watcher/audit and tests/sdk/snapshot/test_audit.py have it
async def test_w18_p15_what_the_api_server_never_reported_is_repaired_within_an_interval(
    open_rig: OpenRig,
) -> None:
    rig = await open_rig("a", resources=(MAPS,))
    cluster = rig.clusters["a"]
    for name in ("gone", "old", "kept"):
        cluster.create(MAPS, {"metadata": {"name": name}, "data": {"k": "1"}}, "default")
    rig.start_reconciler(audit_wait=timedelta(milliseconds=100))
    rig.start_watcher("a", **QUICK)
    await rig.synced("core/configmaps")
    rule = cluster.faults.add(DropEvents(), verb="watch", resource="configmaps", count=3)
    cluster.delete(MAPS, "default", "gone")
    cluster.patch(MAPS, "default", "old", {"data": {"k": "2"}})
    cluster.create(MAPS, {"metadata": {"name": "new"}, "data": {"k": "1"}}, "default")
    await eventually(lambda: rule.hits == 3)
    expected = {"kept": "1", "old": "2", "new": "1"}
    await eventually(lambda: holds(rig, expected))  # no watch sends them any more


async def holds(rig: Rig, expected: dict[str, str]) -> bool:
    page = await rig.reader.list(ListQuery(clusters=["a"], resource="core/configmaps"))
    values = {entry.name: json.loads(entry.body)["data"]["k"] for entry in page.entries}
    return values == expected
