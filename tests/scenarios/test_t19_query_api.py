"""T19: the paths of multi_resource_operator while a watcher is away, and as types come and go.

The other steps are in `tests/query_api`: columns, names, limits, rights; kubectl in its `kube`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fleetbus_watcher.timing import WatcherTiming
from support.api.custom_resource_definitions import CRDS, definition
from support.eventually import eventually
from support.rigs.query_api import served
from support.rigs.scenario import MAPS
from support.servers.plain_http import http_client

if TYPE_CHECKING:
    import httpx

    from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable["Rig"]]
GADGETS = "example.com/v1/gadgets"
SOON = timedelta(seconds=15)
INSTALLED = timedelta(seconds=30)


@pytest.mark.slow
async def test_t19_what_happened_while_a_watcher_was_away_is_made_good(
    open_rig: OpenRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Step 6; and a4: while it is away, the answer says so."""
    monkeypatch.setattr("fleetbus.snapshot.records.ANSWERED_WITHIN", timedelta(seconds=2))
    rig = await open_rig("c1", "c2", resources=(MAPS,))
    c2 = rig.clusters["c2"]
    for name in ("o1", "o2"):
        c2.create(MAPS, {"metadata": {"name": name}, "data": {"k": "old"}}, "default")
    rig.start_reconciler()
    often: dict[str, Any] = {
        "heartbeat_idle": timedelta(seconds=0.5),
        "heartbeat_busy": timedelta(seconds=0.5),
    }
    for name in rig.clusters:
        rig.start_watcher(name, **often)
    async with (
        served(str(rig.shared.redis_url), tmp_path) as url,
        http_client(url, timeout=20) as client,
    ):
        await eventually(lambda: shows(client, {"o1": "old", "o2": "old"}, is_complete=True), SOON)
        await rig.stop_watcher("c2")
        c2.patch(MAPS, "default", "o1", {"data": {"k": "new"}})
        c2.delete(MAPS, "default", "o2")
        c2.create(MAPS, {"metadata": {"name": "o3"}, "data": {"k": "new"}}, "default")
        await eventually(lambda: shows(client, {"o1": "old", "o2": "old"}, is_complete=False), SOON)
        rig.start_watcher("c2", **often)
        await eventually(lambda: shows(client, {"o1": "new", "o3": "new"}, is_complete=True), SOON)
        await rig.aclose()


async def shows(client: httpx.AsyncClient, data: dict[str, str], *, is_complete: bool) -> bool:
    """Whether the answer has these config maps of c2, and says how far it can be relied on."""
    query = {"gvr": "v1.configmaps", "namespace": "default", "cluster": "c2", "limit": "0"}
    answer = await client.get("/v1/list", params=query)
    if not answer.is_success:
        return False
    header = answer.headers.get("fleetbus-incomplete", "")
    assert not header or header.startswith('"c2"')
    rows: list[Any] = answer.json()
    by_name = {row["metadata"]["name"]: row.get("data", {}).get("k") for row in rows}
    by_name.pop("kube-root-ca.crt", None)
    is_aged = header.startswith('"c2";age=')
    return by_name == data and (not header if is_complete else is_aged)


@pytest.mark.slow
async def test_t19_types_are_listed_soon_after_they_come_and_are_gone_when_they_are_removed(
    open_rig: OpenRig, tmp_path: Path
):
    """Step 9."""
    rig = await open_rig("c1", resources=("*",))
    rig.watcher_timing = WatcherTiming(second_discovery=timedelta(milliseconds=50))
    rig.start_reconciler()
    rig.start_watcher("c1", discovery_interval=timedelta(seconds=0.5))
    cluster = rig.clusters["c1"]
    async with (
        served(str(rig.shared.redis_url), tmp_path) as url,
        http_client(url, timeout=20) as client,
    ):
        await eventually(lambda: status(client, "v1.configmaps", 200), SOON)
        assert await status(client, "gadgets", 404)
        cluster.create(CRDS, definition("example.com", "gadgets", "Gadget"))
        cluster.create(GADGETS, {"metadata": {"name": "g"}}, "default")
        for gvr in (
            "example.com.v1.gadgets",
            GADGETS,
            "gadgets.example.com",
            "v1.example.com.gadgets",
        ):
            await eventually(lambda gvr=gvr: has_one(client, gvr), INSTALLED)
        cluster.delete(CRDS, None, "gadgets.example.com")
        await eventually(lambda: status(client, "gadgets", 404), INSTALLED)
        await rig.aclose()


async def status(client: httpx.AsyncClient, gvr: str, code: int) -> bool:
    """Whether a list answers with a status."""
    return (await client.get("/v1/list", params={"gvr": gvr})).status_code == code


async def has_one(client: httpx.AsyncClient, gvr: str) -> bool:
    """Whether a list has one object."""
    answer = await client.get("/v1/list", params={"gvr": gvr})
    return answer.is_success and len(answer.json()) == 1
