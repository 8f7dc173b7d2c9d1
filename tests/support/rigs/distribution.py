"""A distribution on the bus: a hub, members, all services, and MultiClusterResources.

The clusters are Cluster objects of the hub, emulated or real (`servers.real_cluster`), so that
labels, suspension and joining are those of a user. In the wide variant two distributors share the
work.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import pytest
import yaml

from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus_devfleet.processes.children import Child
from fleetbus_distributor.controllers import NAME, TARGETS
from fleetbus_distributor.main import run as run_distributor
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_distributor.settings import DistributorSettings
from fleetbus_emulator.apiserver import ApiError, LoggedRequest
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually, never
from support.processes.programs import installed
from support.processes.services import Processes
from support.rigs.fleet import RESOURCES, Rig
from support.rigs.scenario import FULL, QUIET, WITHIN, Scenario, encoded, scenario
from support.servers.real_cluster import REAL

Object = dict[str, Any]

HUB: Final = "t4"
MEMBERS: Final = ("t1", "t2")
EVERYWHERE: Final[Object] = {"clusters": [{"name": "t1"}, {"name": "t2"}, {"name": HUB}]}
AFTER_RETURN: Final = timedelta(seconds=60)
"""Longer than the lease that a killed worker leaves behind, and the work after it."""
OBSERVED: Final = timedelta(seconds=60) if FULL else QUIET
"""Time for which a converged distribution is watched."""
IN_FULL: Final = pytest.mark.skipif(
    not FULL and not REAL,
    reason="make scenarios, make e2e; round by round it is in tests/distributor",
)
_SYSTEM: Final = "fleetbus-clusters"
_AGENT: Final = "fleetbus-distributor"
_READS: Final = frozenset({"get", "list", "watch"})
_BOOKKEEPING: Final = ("controllerrevisions", "inventorychunks")
"""Resources that the distributor stores on the hub for itself, and deletes there."""


@dataclass
class Distribution:
    """A hub, members, and the services between them; see `distribution`.

    Attributes:
        rig: clusters and services.
        story: what was logged and published.
    """

    rig: Rig
    story: Scenario

    # --- the fleet ----------------------------------------------------------------------------

    def join(self, name: str, **labels: str) -> None:
        """Make the Cluster object of an API server, and the Secret that a direct one names."""
        if name not in self.rig.behind_agents:
            self._write_kubeconfig(name)
        self.rejoin(name, **labels)

    def _write_kubeconfig(self, name: str) -> None:
        whole = yaml.load(self.rig.kubeconfig.read_text(), yaml.CSafeLoader)
        document = {**whole, "current-context": name}
        for part in ("contexts", "clusters"):
            document[part] = [one for one in whole[part] if one["name"] == name]
        secret = f"{name}-kubeconfig"
        body = {
            "metadata": {"name": secret, "labels": {"fleetbus.dev/kubeconfig": "true"}},
            "data": {"kubeconfig": encoded(yaml.safe_dump(document))},
        }
        self.hub.create("v1/secrets", body, _SYSTEM)

    def rejoin(self, name: str, **labels: str) -> None:
        """Make the Cluster object alone; the Secret is still there."""
        reference = {"namespace": _SYSTEM, "name": f"{name}-kubeconfig"}
        spec: Object = {"kubeconfigSecretRef": reference, **({"hub": True} if name == HUB else {})}
        if name in self.rig.behind_agents:
            spec = {"access": "Agent"}
        metadata = {"name": name, "labels": labels}
        self.hub.create(CLUSTER_RESOURCE, {"metadata": metadata, "spec": spec})

    def label(self, name: str, **labels: str | None) -> None:
        """Change labels of a Cluster object."""
        self.hub.patch(CLUSTER_RESOURCE, None, name, {"metadata": {"labels": labels}})

    def suspend(self, name: str, *, suspended: bool = True) -> None:
        """Suspend a cluster, or resume it."""
        self.hub.patch(CLUSTER_RESOURCE, None, name, {"spec": {"suspend": suspended}})

    def start_distributors(self, **settings: Any) -> None:
        """One, or two of them in the wide variant."""
        chosen = DistributorSettings(**settings)
        for number in range(2 if self.rig.is_wide else 1):
            self.rig.start(f"{NAME}-{number}", run_distributor(self.rig.shared, chosen))

    async def stop_distributors(self) -> None:
        """Stop what `start_distributors` has started."""
        for number in range(2 if self.rig.is_wide else 1):
            await self.rig.stop(f"{NAME}-{number}")

    @asynccontextmanager
    async def process(self) -> AsyncGenerator[Child]:
        """One distributor as a process, to be killed."""
        shared = self.rig.shared
        processes = Processes(
            folder=self.rig.kubeconfig.parent,
            kubeconfig=self.rig.kubeconfig,
            nats_url=str(shared.nats_url),
            redis_url=str(shared.redis_url),
            resources=self.rig.resources,
        )
        child = processes.distributor(
            NAME,
            FLEETBUS_HUB_KUBECONFIG=str(self.rig.kubeconfig),
            FLEETBUS_HUB_CONTEXT=HUB,
            FLEETBUS_HUB_CLUSTER=HUB,
            FLEETBUS_PROVIDERS=json.dumps([{"type": "cluster"}]),
        )
        try:
            await processes.ready(child)
            yield child
        finally:
            await child.stop()

    @property
    def hub(self) -> Any:
        """The API server with the MultiClusterResources."""
        return self.rig.clusters[HUB]

    # --- MultiClusterResources ----------------------------------------------------------------

    def create(self, name: str = "x", namespace: str = "default", **spec: Any) -> Object:
        """Create one."""
        metadata = {"name": name, "namespace": namespace}
        return self.hub.create(MULTI_CLUSTER_RESOURCES, {"metadata": metadata, "spec": spec})

    def edit(self, name: str = "x", namespace: str = "default", **spec: Any) -> None:
        """Replace parts of the spec, as `kubectl edit` does; a part that is None goes."""
        while True:
            resource = self.resource(name, namespace)
            changed = {**resource["spec"], **spec}
            resource["spec"] = {key: part for key, part in changed.items() if part is not None}
            try:
                self.hub.update(MULTI_CLUSTER_RESOURCES, resource)
            except ApiError as refused:  # the distributor has written its status meanwhile
                if refused.code != 409:
                    raise
            else:
                return

    def resource(self, name: str = "x", namespace: str = "default") -> Object:
        """One of them, live."""
        found = self.hub.get(MULTI_CLUSTER_RESOURCES, namespace, name)
        assert found is not None
        return found

    def exists(self, name: str = "x", namespace: str = "default") -> bool:
        """Whether it is still there."""
        return self.hub.get(MULTI_CLUSTER_RESOURCES, namespace, name) is not None

    def delete(self, name: str = "x", namespace: str = "default") -> None:
        """Order its deletion."""
        self.hub.delete(MULTI_CLUSTER_RESOURCES, namespace, name)

    async def gone(self, name: str = "x", namespace: str = "default") -> None:
        """Wait until it is deleted, its objects before it."""
        await eventually(lambda: not self.exists(name, namespace), AFTER_RETURN)

    def status(self, name: str = "x", namespace: str = "default") -> Object:
        """Its status; {} before the first one."""
        return self.resource(name, namespace).get("status") or {}

    def states(self, name: str = "x", namespace: str = "default") -> dict[str, str]:
        """Cluster → `State` or `State/Reason`, once the newest spec was read; else {}."""
        resource = self.resource(name, namespace)
        status: Object = resource.get("status") or {}
        if status.get("observedGeneration") != resource["metadata"]["generation"]:
            return {}
        return {
            one["name"]: one["state"]
            if one["state"] == one["reason"]
            else f"{one['state']}/{one['reason']}"
            for one in cast("list[Object]", status.get("clusters", []))
        }

    def entry(self, cluster: str, name: str = "x", namespace: str = "default") -> Object:
        """The entry of one cluster in the status."""
        entries: list[Object] = self.status(name, namespace).get("clusters", [])
        return next(one for one in entries if one["name"] == cluster)

    def condition(self, kind: str, name: str = "x", namespace: str = "default") -> Object:
        """A condition; {} if there is none."""
        found: list[Object] = self.status(name, namespace).get("conditions", [])
        absent: Object = {}
        return next((one for one in found if one["type"] == kind), absent)

    async def has_states(self, name: str = "x", namespace: str = "default", **states: str) -> None:
        """Wait until the newest spec has exactly these states."""
        within = max(WITHIN, AFTER_RETURN)
        try:
            await eventually(lambda: self.states(name, namespace) == states, within)
        except AssertionError as e:
            e.add_note(f"wanted: {states}")
            e.add_note(f"status: {json.dumps(self.status(name, namespace), default=str)[:3000]}")
            raise

    async def applied(self, *clusters: str, name: str = "x", namespace: str = "default") -> None:
        """Wait until these clusters, and no others, have the newest spec."""
        wanted = dict.fromkeys(clusters or ("t1", "t2", HUB), "Applied")
        await self.has_states(name, namespace, **wanted)

    def events(self, reason: str = "", name: str = "x") -> list[str]:
        """The messages of the Kubernetes Events about one of them."""
        resource = self.resource(name)["metadata"]
        found = self.hub.list("v1/events", resource["namespace"])
        ours = [one for one in found if one["involvedObject"].get("uid") == resource["uid"]]
        return [one["message"] for one in ours if not reason or one["reason"] == reason]

    # --- objects ------------------------------------------------------------------------------

    def get(self, cluster: str, gvr: str, name: str, namespace: str = "default") -> Object:
        """An object that has to be there."""
        found = self.rig.clusters[cluster].get(gvr, namespace, name)
        assert found is not None, f"{gvr} {name} is not in {cluster}"
        return found

    def where(self, gvr: str, name: str, namespace: str = "default") -> list[str]:
        """The clusters that have an object."""
        clusters = self.rig.clusters.items()
        return sorted(n for n, one in clusters if one.get(gvr, namespace, name) is not None)

    def of(self, field: Callable[[Object], Any], gvr: str, name: str) -> dict[str, Any]:
        """Cluster → a part of an object of the namespace default; None where it is absent."""
        found = {n: one.get(gvr, "default", name) for n, one in self.rig.clusters.items()}
        return {n: None if one is None else field(one) for n, one in found.items()}

    # --- what was asked -----------------------------------------------------------------------

    def writes(self, cluster: str) -> list[LoggedRequest]:
        """The accepted writes of distributors at a cluster; no dry runs."""
        return [
            one
            for one in self.rig.clusters[cluster].requests
            if one.verb not in _READS
            and one.user_agent.startswith(_AGENT)
            and 200 <= one.status < 300
            and "dryRun" not in one.query
        ]

    def asked(self, cluster: str, path: str) -> list[LoggedRequest]:
        """The requests of distributors for a path that ends like this."""
        asked = self.rig.clusters[cluster].requests
        return [r for r in asked if r.user_agent.startswith(_AGENT) and r.path.endswith(path)]

    def deletions(self) -> list[str]:
        """`cluster name` of everything that distributors have deleted, but for bookkeeping."""
        return sorted(
            f"{cluster} {one.path.rpartition('/')[2]}"
            for cluster in self.rig.clusters
            for one in self.writes(cluster)
            if one.verb == "delete" and not any(kind in one.path for kind in _BOOKKEEPING)
        )

    # --- commands -----------------------------------------------------------------------------

    async def fleetbus(self, *words: str) -> tuple[int, str]:
        """Run the command line against the hub; its exit status and what it printed."""
        words = (*words, "--hub-kubeconfig", str(self.rig.kubeconfig), "--hub-context", HUB)
        child = await asyncio.create_subprocess_exec(
            *installed("fleetbus", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **os.environ,
                "FLEETBUS_ALLOW_LOOPBACK": "1",
                "FLEETBUS_NATS_URL": str(self.rig.shared.nats_url),
                "NO_COLOR": "1",
            },
        )
        out, err = await child.communicate()
        return child.returncode or 0, (out or err).decode()

    # --- the end ------------------------------------------------------------------------------

    async def quiet(self) -> None:
        """Wait until no queue has anything that is ready or runs."""
        for name in (NAME, TARGETS):
            await self.rig.quiet(name, within=AFTER_RETURN)

    async def stays_quiet(self, within: timedelta = QUIET) -> None:
        """Check that nothing at all is written for a while (G4)."""
        await self.quiet()
        # A status is written at most once a second, so the last one may still be due.
        with suppress(AssertionError):
            await eventually(self._new_writes(), timedelta(seconds=2))
            await self.quiet()
        await never(self._new_writes(), within)

    def _new_writes(self) -> Callable[[], list[str]]:
        """A function that returns what has been written since."""
        before = Counter(self._shared_writes())
        return lambda: list((Counter(self._shared_writes()) - before).elements())

    def _shared_writes(self) -> list[str]:
        """The writes of all services, but for how the clusters are (the projector reports it)."""
        return [one for one in self.story.writes() if "/v1alpha1/clusters/" not in one]

    async def close(self, deleted: Iterable[str] = (), errors: Sequence[str] = ()) -> None:
        """Check what holds at the end of every scenario (G4, G5, G7).

        Args:
            deleted: `cluster name` of what distributors had to delete, each as often as it was.
            errors: the error lines that a step names.
        """
        await self.stays_quiet()
        assert self.deletions() == sorted(deleted)
        self.story.check_logs(errors)


@asynccontextmanager
async def distribution(
    open_rig: Callable[..., Any],
    *members: str,
    started: bool = True,
    resources: Sequence[str] = RESOURCES,
    labels: dict[str, dict[str, str]] | None = None,
    later: Sequence[str] = (),
    **options: Any,
) -> AsyncGenerator[Distribution]:
    """A hub `t4` and members (`t1` and `t2` by default), with all services.

    Every second member is behind an agent; those that join later are direct.

    Args:
        open_rig: the fixture.
        members: their names.
        started: whether the distributors are started.
        resources: what is watched on every cluster.
        labels: of the Cluster objects, by name.
        later: API servers that are there, and join when the test says so.
        options: of the rig.
    """
    names = (*(members or MEMBERS), HUB)
    rig: Rig = await open_rig(*names, *later, hub=HUB, direct=later, resources=resources, **options)
    async with scenario(rig) as story:
        made = Distribution(rig, story)
        made.hub.create("v1/namespaces", {"metadata": {"name": _SYSTEM}})
        for definition in crds():
            made.hub.create(CRDS, definition)
        for name in names:
            made.join(name, **(labels or {}).get(name, {}))
        story.use({"type": "cluster"}, hub=HUB)
        on_hub = (*resources, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE)
        for name in (*names, *later):
            rig.start_watcher(name, resources=on_hub if name == HUB else resources)
        rig.start_reconciler()  # with its own timers, as the watchers: else clusters turn stale
        if started:
            made.start_distributors()
        yield made
        # Before the scenario stops to listen: services log errors about connections that end.
        await rig.aclose()
