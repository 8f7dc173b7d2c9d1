"""A fleet whose processes are of two versions, while objects change in every cluster.

Each role is one process, as the chart starts it. The hub cannot reach the target: an agent and a
watcher serve it there. `roll` replaces a role as a Deployment does: the new process starts, both
run while objects change, and then the old one stops.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from redis.exceptions import RedisError

from fleetbus.errors import StoreError
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.snapshot.reads.query import ListQuery
from fleetbus.snapshot.reads.reader import SnapshotReader
from fleetbus.store.connection import connect
from fleetbus_devfleet.processes.children import Child
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_emulator.apiserver import ApiError, Cluster, serve
from fleetbus_proto.keys import SnapshotKeys
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.eventually import eventually
from support.hostile.careless_copies import COPIER
from support.processes.services import Processes
from support.servers.plain_http import http_client

MAPS: Final = "v1/configmaps"
KEY: Final = "core/configmaps"
HUB: Final = "hub"
SOURCE, TARGET = "eu1", "us1"
SYSTEM: Final = "fleetbus-clusters"
PLACED: Final = "placed"
"""The namespace, and the name, of the object that a MultiClusterResource places."""
WATCHERS, PROJECTOR, WORKER = "watchers", "projector", "worker"
DISTRIBUTOR, QUERY_API = "distributor", "query-api"
AGENT, MEMBER_WATCHER = "agent", "member-watcher"
ROLES: Final = (
    WATCHERS,
    PROJECTOR,
    WORKER,
    DISTRIBUTOR,
    QUERY_API,
    AGENT,
    MEMBER_WATCHER,
)
WITHIN: Final = timedelta(minutes=10)
"""The longest wait for a condition: a busy machine takes much longer than a quiet one."""
_PROGRAMS: Final = {
    WATCHERS: ("fleetbus-watcher", "--pool"),
    PROJECTOR: ("fleetbus-reconciler",),
    WORKER: ("fleetbus-reconciler", COPIER),
    DISTRIBUTOR: ("fleetbus-distributor",),
    QUERY_API: ("fleetbus-query-api",),
    AGENT: ("fleetbus-agent",),
    MEMBER_WATCHER: ("fleetbus-watcher", "--cluster", TARGET, "--context", TARGET),
}
_SETTINGS: Final[Mapping[str, Mapping[str, str]]] = {
    WORKER: {
        "FLEETBUS_RECONCILER_PROJECTOR": "false",
        "COPIER_SOURCE": SOURCE,
        "COPIER_TARGET": TARGET,
        "COPIER_SELECTOR": "copied=yes",
    },
    QUERY_API: {"FLEETBUS_QUERY_API_AUTHENTICATION": "none", "FLEETBUS_QUERY_API_PORT": "0"},
    AGENT: {"FLEETBUS_AGENT_CLUSTER": TARGET, "FLEETBUS_AGENT_CONTEXT": TARGET},
}
_SOURCES: Final = 10


@dataclass
class TwoVersions:
    """The fleet.

    Attributes:
        folder: for logs and ports.
        clusters: the API servers, by name.
        processes: starts services.
        programs: the folder with the commands of each version.
        running: the process of each role.
    """

    folder: Path
    clusters: dict[str, Cluster]
    processes: Processes
    programs: Mapping[str, Path]
    running: dict[str, Child] = field(default_factory=dict[str, Child])
    started: list[Child] = field(default_factory=list[Child])
    changes: int = 0
    deleted: set[str] = field(default_factory=set[str])
    """Names of the objects whose deletion was ordered."""
    uids: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """UIDs of the objects that must never be deleted, by cluster and name."""

    # --- processes --------------------------------------------------------------------------------

    async def start(self, version: str, roles: Iterable[str] = ROLES) -> None:
        """Start these roles in one version, and wait until all are ready."""
        children = {role: self._spawn(role, version) for role in roles}
        for role, child in children.items():
            await self.processes.ready(child, WITHIN)
            self.running[role] = child

    async def roll(self, version: str, *roles: str) -> None:
        """Replace the processes of these roles by those of a version, and check the fleet."""
        old = [self.running[role] for role in roles]
        await self.start(version, roles)
        self.change()
        await self.in_step()
        for child in old:
            await child.stop()
        self.change()
        await self.in_step()

    async def stop(self) -> None:
        """Stop whatever still runs."""
        for child in self.started:
            child.terminate()
        for child in self.started:
            await child.stop()

    def _spawn(self, role: str, version: str) -> Child:
        program, *arguments = _PROGRAMS[role]
        command = [str(self.programs[version] / program), *arguments]
        name = f"{len(self.started)}-{role}-{version}"
        port = {"FLEETBUS_QUERY_API_PORT_FILE": str(self.folder / f"{name}.api")}
        hub = {
            "FLEETBUS_HUB_KUBECONFIG": str(self.processes.kubeconfig),
            "FLEETBUS_HUB_CONTEXT": HUB,
            "FLEETBUS_HUB_CLUSTER": HUB,
            "FLEETBUS_PROVIDERS": json.dumps([{"type": "cluster"}]),
            "FLEETBUS_WATCHER_STOP_PATIENCE": "1s",
        }
        agent = {"FLEETBUS_AGENT_KUBECONFIG": str(self.processes.kubeconfig)}
        if role == MEMBER_WATCHER:
            command += ["--replica", name, "--kubeconfig", str(self.processes.kubeconfig)]
        settings = {**hub, **port, **agent, **_SETTINGS.get(role, {})}
        child = self.processes.program(name, command, **settings)
        self.started.append(child)
        return child

    # --- objects ----------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Make the clusters members of the fleet, with the first objects."""
        hub = self.clusters[HUB]
        hub.create("v1/namespaces", {"metadata": {"name": SYSTEM}})
        for definition in crds():
            hub.create(CRDS, definition)
        for name in self.clusters:
            self._join(name)
        for name in (SOURCE, TARGET):
            self.clusters[name].create("v1/namespaces", {"metadata": {"name": PLACED}})
        hub.create(MULTI_CLUSTER_RESOURCES, self._multi_cluster_resource())
        self.change()

    def change(self) -> None:
        """Change what is copied and what is placed; create an object and delete another one."""
        self.changes += 1
        source = self.clusters[SOURCE]
        for number in range(_SOURCES):
            _write(source, f"m{number}", str(self.changes))
        _write(source, f"new{self.changes}", "1")
        if self.changes > 1:
            name = f"new{self.changes - 1}"
            self.deleted.add(name)
            source.delete(MAPS, "default", name)
        _write(self.clusters[HUB], "on-the-hub", str(self.changes))
        self._edit()

    def _edit(self) -> None:
        hub = self.clusters[HUB]
        while True:
            resource = hub.get(MULTI_CLUSTER_RESOURCES, "default", PLACED)
            assert resource is not None
            resource["spec"] = self._multi_cluster_resource()["spec"]
            try:
                hub.update(MULTI_CLUSTER_RESOURCES, resource)
            except ApiError as refused:  # the distributor has written its status meanwhile
                if refused.code != 409:
                    raise
            else:
                return

    def _multi_cluster_resource(self) -> dict[str, Any]:
        template = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": PLACED, "namespace": PLACED},
            "data": {"change": str(self.changes)},
        }
        placement = {"clusters": [{"name": SOURCE}, {"name": TARGET}]}
        metadata = {"name": PLACED, "namespace": "default"}
        return {"metadata": metadata, "spec": {"template": template, "placement": placement}}

    def _join(self, name: str) -> None:
        hub = self.clusters[HUB]
        if name == TARGET:
            agent = {"metadata": {"name": name}, "spec": {"access": "Agent"}}
            hub.create(CLUSTER_RESOURCE, agent)
            return
        whole = yaml.safe_load(self.processes.kubeconfig.read_text())
        document = {**whole, "current-context": name}
        for part in ("contexts", "clusters"):
            document[part] = [entry for entry in whole[part] if entry["name"] == name]
        secret = f"{name}-kubeconfig"
        metadata = {"name": secret, "labels": {"fleetbus.dev/kubeconfig": "true"}}
        data = {"kubeconfig": base64.b64encode(yaml.safe_dump(document).encode()).decode()}
        hub.create("v1/secrets", {"metadata": metadata, "data": data}, SYSTEM)
        spec = {"kubeconfigSecretRef": {"namespace": SYSTEM, "name": secret}}
        spec |= {"hub": True} if name == HUB else {}
        hub.create(CLUSTER_RESOURCE, {"metadata": {"name": name}, "spec": spec})

    # --- the checks -------------------------------------------------------------------------------

    async def in_step(self) -> None:
        """Wait until everything is as the last change wants it, and check what may never happen."""
        try:
            await eventually(self._problem_free, WITHIN)
        except AssertionError as e:
            e.add_note(f"running: {sorted(child.name for child in self.running.values())}")
            e.add_note(f"the problem: {await self.problem()}")
            raise
        self.check()

    async def _problem_free(self) -> bool:
        for child in self.running.values():
            child.raise_if_ended()
        return not await self.problem()

    async def problem(self) -> str:
        """Describe what is not as it must be; empty if all is."""
        source, target = (_contents(self.clusters[name], "default") for name in (SOURCE, TARGET))
        if source != target:
            return f"the controller has not run for the last state: {source} {target}"
        for name in (SOURCE, TARGET):
            placed = _contents(self.clusters[name], PLACED)
            if placed != {PLACED: {"change": str(self.changes)}}:
                return f"the distributor has not placed the last state on {name}: {placed}"
        resource = self.clusters[HUB].get(MULTI_CLUSTER_RESOURCES, "default", PLACED) or {}
        status = resource.get("status", {})
        if status.get("observedGeneration") != resource["metadata"]["generation"]:
            return f"the status is behind: {status}"
        if {entry["state"] for entry in status["clusters"]} != {"Applied"}:
            return f"not applied: {status['clusters']}"
        return await self._snapshot_problem() or await self._api_problem()

    async def _snapshot_problem(self) -> str:
        try:
            redis = await connect(self.processes.redis_url)
        except StoreError as e:
            return str(e)
        try:
            reader = SnapshotReader(redis, SnapshotKeys())
            freshness = await reader.freshness(self.clusters, KEY)
            for name, cluster in self.clusters.items():
                page = await reader.list(ListQuery(clusters=[name], resource=KEY))
                entries = {
                    entry.name: (entry.uid, entry.resource_version) for entry in page.entries
                }
                if entries != _identities(cluster):
                    return f"the snapshot of {name}: {entries}, not {_identities(cluster)}"
                if not freshness[name].is_complete:
                    return f"{name} is not complete: {freshness[name]}"
        except (RedisError, StoreError) as e:
            return str(e)
        finally:
            await redis.aclose()
        return ""

    async def _api_problem(self) -> str:
        port = (self.folder / f"{self.running[QUERY_API].name}.api").read_text().strip()
        async with http_client(f"http://127.0.0.1:{port}") as client:
            with suppress(httpx.TimeoutException):
                answer = await client.get("/fleet/v1/resources/configmaps")
                if not answer.is_success:
                    return f"the query API: {answer.status_code} {answer.text:.200}"
                items = answer.json()["items"]
                names = sorted(item["object"]["metadata"]["name"] for item in items)
                wanted = sorted(n for c in self.clusters.values() for n in _identities(c))
                return "" if names == wanted else f"the query API has {names}, not {wanted}"
        return "the query API does not answer"

    def check(self) -> None:
        """Nothing was deleted that nobody ordered, and nothing was deleted and made again."""
        for name, cluster in self.clusters.items():
            deletes = [
                request.path.rpartition("/")[2]
                for request in cluster.requests
                if request.verb.startswith("delete") and "/configmaps" in request.path
            ]
            assert set(deletes) <= self.deleted, f"{name}: {deletes}, not only {self.deleted}"
            for obj in cluster.list(MAPS):
                metadata = obj["metadata"]
                first = self.uids.setdefault((name, metadata["name"]), metadata["uid"])
                assert first == metadata["uid"], f"{metadata['name']} of {name} was made again"


def _write(cluster: Cluster, name: str, change: str) -> None:
    data = {"change": change}
    if cluster.get(MAPS, "default", name) is None:
        labels = {"copied": "yes"} if name != "on-the-hub" else {}
        cluster.create(
            MAPS, {"metadata": {"name": name, "labels": labels}, "data": data}, "default"
        )
    else:
        cluster.patch(MAPS, "default", name, {"data": data})


def _contents(cluster: Cluster, namespace: str) -> dict[str, Any]:
    return {obj["metadata"]["name"]: obj["data"] for obj in cluster.list(MAPS, namespace)}


def _identities(cluster: Cluster) -> dict[str, tuple[str, str]]:
    metadata = [obj["metadata"] for obj in cluster.list(MAPS)]
    return {each["name"]: (each["uid"], each["resourceVersion"]) for each in metadata}


@asynccontextmanager
async def two_versions(
    folder: Path, nats_url: str, redis_url: str, programs: Mapping[str, Path]
) -> AsyncGenerator[TwoVersions]:
    """Clusters with objects, and no process yet; all are stopped at the end.

    Args:
        folder: for logs and ports.
        nats_url: an empty NATS.
        redis_url: an empty store.
        programs: the folder with the commands of each version, by its name.
    """
    clusters = {name: Cluster(name) for name in (HUB, SOURCE, TARGET)}
    async with serve([*clusters.values()]) as servers:
        kubeconfig = folder / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        resources = (MAPS, CLUSTER_RESOURCE, MULTI_CLUSTER_RESOURCES)
        processes = Processes(folder, kubeconfig, nats_url, redis_url, resources)
        fleet = TwoVersions(folder, clusters, processes, programs)
        fleet.set_up()
        try:
            yield fleet
        finally:
            await fleet.stop()
