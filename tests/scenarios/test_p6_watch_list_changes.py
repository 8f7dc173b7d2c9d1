"""A cluster's watch list is changed on the hub while everything runs (P6, P14, P17, S7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from fleetbus.bus.connection import connected
from fleetbus.clusters.membership import join
from fleetbus.controller.controller import Controller
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import read_kube_config
from fleetbus.process.settings import ProviderSettings, SharedSettings, load_settings
from fleetbus_emulator.apiserver import Cluster
from fleetbus_reconciler.timing import ReconcilerTiming
from fleetbus_watcher.timing import WatcherTiming
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.objects import pod
from support.rigs.fleet import Recorder, Rig

CLUSTERS = "fleetbus.dev/v1alpha1/clusters"
PODS, CONFIG_MAPS = "v1/pods", "v1/configmaps"
POD_KEY, MAP_KEY = "core/pods", "core/configmaps"


@dataclass
class Fleet:
    """A hub that says what to watch of member `m`, and every deletion that was published."""

    rig: Rig
    deleted: list[str]

    @property
    def hub(self) -> Cluster:
        return self.rig.clusters["hub"]

    @property
    def member(self) -> Cluster:
        return self.rig.clusters["m"]

    def want(self, **spec: Any) -> None:
        self.hub.patch(CLUSTERS, None, "m", {"spec": spec})

    async def names(self, key: str) -> list[str]:
        """The objects that are held, but for what an API server keeps for itself."""
        places = self.rig.reader.keys("m", key)
        return [f"{where}/{name}" async for where, name in places if where != "kube-system"]

    async def holds(self, key: str, *names: str) -> bool:
        return await self.names(key) == list(names)

    async def is_(self, key: str, state: str) -> bool:
        return (await self.rig.reader.freshness(["m"], key))["m"].state == state

    def says(self, kind: str, status: str, reason: str) -> bool:
        resource = cast("dict[str, Any]", self.hub.get(CLUSTERS, None, "m"))
        conditions = resource.get("status", {}).get("conditions", [])
        return (kind, status, reason) in {(c["type"], c["status"], c["reason"]) for c in conditions}

    def message(self, kind: str) -> str:
        resource = cast("dict[str, Any]", self.hub.get(CLUSTERS, None, "m"))
        return next(c["message"] for c in resource["status"]["conditions"] if c["type"] == kind)


@asynccontextmanager
async def fleet_of(rig: Rig) -> AsyncGenerator[Fleet]:
    hub, member = rig.clusters["hub"], rig.clusters["m"]
    for definition in crds():
        hub.create(CRDS, definition)
    hub.create("v1/namespaces", {"metadata": {"name": "fleetbus-clusters"}})
    member.create("v1/namespaces", {"metadata": {"name": "other"}})
    member.create(PODS, pod("p"), "default")
    for namespace in ("default", "other"):
        member.create(CONFIG_MAPS, {"metadata": {"name": "c"}}, namespace)
    async with KubeClient(read_kube_config(rig.kubeconfig, "hub")) as client:
        await join(client, "m", read_kube_config(rig.kubeconfig, "m"))
    rig.shared = load_settings(
        SharedSettings,
        **{
            **rig.shared.model_dump(),
            "providers": [ProviderSettings.model_validate({"type": "cluster"})],
        },
    )
    async with connected(rig.shared.nats_url, name="test") as bus:
        deleted: list[str] = []

        async def note(message: Msg) -> None:
            deleted.append(message.subject)

        await bus.nc.subscribe("fleetbus.events.*.*.*.*.*.deleted", cb=note)
        yield Fleet(rig, deleted)


@pytest.mark.full  # test_unwatched_scopes of the reconciler has it, without the watchers
async def test_p6_a_watch_list_on_the_hub_is_narrowed_widened_dropped_and_suspended(
    open_rig: Callable[..., Awaitable[Rig]],
) -> None:
    rig = await open_rig("hub", "m", hub="hub")
    rig.watcher_timing = WatcherTiming(crd_settles=timedelta(milliseconds=10))
    rig.reconciler_timing = ReconcilerTiming(cluster_status=timedelta(seconds=0.1))
    async with fleet_of(rig) as fleet:
        recorder = Recorder(Controller("maps"), CONFIG_MAPS)
        recorder.controller.watch(CONFIG_MAPS)
        fleet.want(resources=[PODS, CONFIG_MAPS])
        rig.start_reconciler(recorder.controller, unwatched_after=timedelta(seconds=0.3))
        # Its own list says something else; of the hub it knows nothing but the bucket's key.
        rig.start_watcher(
            "m",
            resources=("v1/namespaces",),
            heartbeat_idle=timedelta(seconds=0.1),
            heartbeat_busy=timedelta(seconds=0.1),
        )
        await eventually(lambda: fleet.holds(MAP_KEY, "default/c", "other/c"))
        await eventually(lambda: fleet.holds(POD_KEY, "default/p"))
        await rig.quiet("maps")
        recorder.runs.clear()

        narrowed = {"resource": CONFIG_MAPS, "namespaces": ["default"]}
        fleet.want(resources=[narrowed, "po ds"])
        await eventually(lambda: fleet.says("Synced", "False", "InvalidResources"))
        assert "'po ds'" in fleet.message("Synced")

        fleet.want(resources=[narrowed])
        await eventually(lambda: fleet.holds(MAP_KEY, "default/c"))
        await eventually(lambda: fleet.holds(POD_KEY))
        assert await fleet.is_(POD_KEY, "unknown")
        assert await fleet.is_(MAP_KEY, "synced")

        fleet.want(suspend=True)
        await eventually(lambda: fleet.says("Connected", "False", "Suspended"))
        assert await fleet.holds(MAP_KEY, "default/c")
        assert fleet.says("Stale", "True", "Suspended")
        assert await fleet.is_(MAP_KEY, "stale")
        await eventually(lambda: fleet.member.open_watches == 0)
        fleet.member.create(CONFIG_MAPS, {"metadata": {"name": "d"}}, "default")

        fleet.want(suspend=False, resources=[CONFIG_MAPS])
        await eventually(lambda: fleet.holds(MAP_KEY, "default/c", "default/d", "other/c"))
        await eventually(lambda: fleet.says("Synced", "True", "AllListed"))
        await rig.quiet("maps")
        assert all(run.object is not None for run in recorder.runs)
        assert not fleet.deleted
