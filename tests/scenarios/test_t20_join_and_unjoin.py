"""T20: clusters join and leave through the query API, while their watchers go on.

The steps about what is uploaded, and who may, are in `tests/query_api/membership`; those about
Clusters that vanish in `tests/distributor/test_no_accidental_deletion.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from fleetbus.bus.connection import connected
from fleetbus_proto.events import Event
from support.eventually import eventually, never
from support.rigs.distribution import HUB, Distribution, distribution
from support.rigs.query_api import served
from support.rigs.scenario import MAPS, QUIET, WITHIN
from support.rigs.watcher import read_stream
from support.servers.plain_http import http_client

if TYPE_CHECKING:
    import httpx

    from support.rigs.fleet import Rig

OpenRig = Callable[..., Awaitable["Rig"]]
NAME, FIRST, SECOND = "t3", "t3", "other"
"""The name of the member, and the two API servers that have it one after the other."""
GONE = timedelta(seconds=10)
SEEN = timedelta(seconds=30)


@dataclass
class Joining:
    """A fleet, and the query API that clusters join and leave through."""

    fleet: Distribution
    client: httpx.AsyncClient

    async def join(self, api_server: str) -> httpx.Response:
        """Send the kubeconfig of an API server under the one name."""
        kubeconfig = yaml.safe_load(self.fleet.rig.kubeconfig.read_text())
        content = json.dumps({**kubeconfig, "current-context": api_server})
        files = {"kubeconfig": ("config", content)}
        return await self.client.post("/v1/join", params={"cluster": NAME}, files=files)

    async def unjoin(self, name: str = NAME) -> httpx.Response:
        """Let it leave."""
        return await self.client.delete("/v1/unjoin", params={"cluster": name})

    async def rows(self) -> list[str]:
        """The ConfigMaps of the namespace default that are shown of the member."""
        query = {"gvr": "v1.configmaps", "cluster": NAME, "namespace": "default", "limit": "0"}
        answer = await self.client.get("/v1/list", params=query)
        assert answer.status_code == 200, answer.text
        names = (each["metadata"]["name"] for each in answer.json())
        return sorted(name for name in names if name != "kube-root-ca.crt")

    async def knows_configmaps(self) -> bool:
        """Whether some member has reported that it has ConfigMaps."""
        query = {"gvr": "v1.configmaps", "limit": "1"}
        return (await self.client.get("/v1/list", params=query)).is_success

    async def is_published(self, name: str) -> bool:
        """Whether an event about an object of the member is on the stream."""
        async with connected(self.fleet.rig.shared.nats_url, name="a-reader") as bus:
            events = [each.message for each in await read_stream(bus)]
        return any(
            isinstance(each, Event) and (each.cluster, each.name) == (NAME, name) for each in events
        )

    def write(self, api_server: str, *names: str) -> None:
        """Make ConfigMaps, as somebody there does."""
        for name in names:
            self.fleet.rig.clusters[api_server].create(
                MAPS, {"metadata": {"name": name}}, "default"
            )


@asynccontextmanager
async def started(open_rig: OpenRig, folder: Path) -> AsyncGenerator[Joining]:
    """A hub and a member, and two API servers that are none; the first one has a watcher."""
    async with distribution(open_rig, "t1", later=(FIRST, SECOND)) as fleet:
        await fleet.rig.stop_watcher(SECOND)
        shared = {
            "hub_kubeconfig": fleet.rig.kubeconfig,
            "hub_context": HUB,
            "hub_cluster": HUB,
        }
        redis_url = str(fleet.rig.shared.redis_url)
        async with (
            served(redis_url, folder, shared=shared) as url,
            http_client(url, timeout=20) as client,
        ):
            joining = Joining(fleet, client)
            await eventually(joining.knows_configmaps, SEEN)
            yield joining


@pytest.mark.slow
async def test_t20_a_cluster_joins_leaves_and_another_one_takes_its_name(
    open_rig: OpenRig, tmp_path: Path
):
    async with started(open_rig, tmp_path) as joining:
        fleet = joining.fleet
        joining.write(FIRST, "one", "two")
        # 1. Queryable, and usable in a placement.
        answer = await joining.join(FIRST)
        assert (answer.status_code, answer.json()) == (200, {"res": "join cluster successful"})
        await eventually(lambda: _shows(joining, "one", "two"), SEEN)
        template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "placed"}}
        placement = {"clusters": [{"name": "t1"}, {"name": NAME}]}
        fleet.create(template=template, placement=placement)
        await fleet.applied("t1", NAME)
        # 3. The hub stays.
        refused = await joining.unjoin(HUB)
        assert (refused.status_code, "is the hub" in refused.json()["error"]) == (400, True)
        # 2. Its rows go, and stay away while its watcher goes on.
        answer = await joining.unjoin()
        assert (answer.status_code, answer.json()) == (200, {"res": "unjoin cluster successful"})
        await eventually(lambda: _shows(joining), GONE)
        joining.write(FIRST, "three")
        fleet.rig.clusters[FIRST].delete(MAPS, "default", "one")
        await eventually(lambda: joining.is_published("three"), WITHIN)
        await never(joining.rows, max(QUIET, timedelta(seconds=2)))
        # 4. Its object stays there and is reported; what placed it can be deleted.
        await eventually(lambda: fleet.status().get("leftBehind"), SEEN)
        left = {"cluster": NAME, "object": "ConfigMap default/placed", "reason": "Unjoined"}
        assert fleet.status()["leftBehind"] == [left]
        fleet.delete()
        await fleet.gone()
        assert fleet.where(MAPS, "placed") == [FIRST]
        # 6. Another API server takes the name, while the watcher of the first one goes on.
        joining.write(SECOND, "new")
        assert (await joining.join(SECOND)).status_code == 200
        fleet.rig.start_watcher(NAME, task="watcher-second", context=SECOND, replica="second")
        await eventually(lambda: _shows(joining, "new"), SEEN)
        joining.write(FIRST, "four")
        joining.write(SECOND, "newer")
        await eventually(lambda: joining.is_published("newer"), WITHIN)
        await eventually(lambda: _shows(joining, "new", "newer"), WITHIN)


async def _shows(joining: Joining, *names: str) -> bool:
    return await joining.rows() == sorted(names)
