"""The clusters of the campaign, in its own process: hub, targets, watchers, and their history.

Each change of an object that matters is a line of `history.jsonl`, whole, with who made it: the
audit log by which the checks decide what a person wanted, and what a distributor did.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Any

import orjson

from faults.distributors.agents import TOKEN, Agents, access_to, let_agents_log_in, open_agents
from faults.distributors.processes import Processes, running_processes
from faults.distributors.settings import (
    ACCOUNTS,
    AGENT,
    BEHIND_AGENTS,
    HUB,
    MAPS,
    NAMESPACE,
    NEW_NAME,
    RENAMED,
    TARGETS,
)
from fleetbus.clusters.leaving import LEFT_LABEL, LEFT_UID
from fleetbus.clusters.leaving import NAMESPACE as FLEET_NAMESPACE
from fleetbus.ownership import MULTI_CLUSTER_RESOURCES
from fleetbus.process.settings import ProviderSettings
from fleetbus_devfleet.processes.servers import nats_server, valkey_server
from fleetbus_distributor.render.spec import CLUSTER_RESOURCE
from fleetbus_emulator.apiserver import Cluster
from fleetbus_emulator.apiserver.storage.state import Change
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.rigs.fleet import Rig, fleet_rig

Json = dict[str, Any]
_HISTORY = ("multiclusterresources", "clusters", "configmaps", "serviceaccounts")
_WATCHED = (MAPS, ACCOUNTS)
_SECRETS = "v1/secrets"


class World:
    """Everything that runs.

    Attributes:
        rig: clusters, watchers and projector.
        processes: the distributors, and the agents.
        agents: those of the targets that the hub cannot reach.
        log: what the campaign did.
        folder: of the seed.
    """

    def __init__(
        self,
        rig: Rig,
        processes: Processes,
        agents: Agents,
        log: list[Json],
        folder: Path,
        history: IO[bytes],
    ) -> None:
        self.rig = rig
        self.processes = processes
        self.agents = agents
        self.log = log
        self.folder = folder
        self._history = history
        self.last_write = time.monotonic()
        """When a distributor last wrote anything but an event."""
        self.names: dict[str, str] = {name: name for name in TARGETS}
        """Name in the fleet → API server."""

    # --- clusters -----------------------------------------------------------------------------

    @property
    def hub(self) -> Cluster:
        return self.rig.clusters[HUB]

    def server(self, name: str) -> Cluster:
        """The API server behind a name of the fleet."""
        return self.rig.clusters[self.names.get(name, name)]

    def set_up(self) -> None:
        """Fill the clusters and start the watchers."""
        for definition in crds():
            self.hub.create(CRDS, definition)
        self.hub.create("v1/namespaces", {"metadata": {"name": FLEET_NAMESPACE}})
        for name, cluster in self.rig.clusters.items():
            cluster.subscribe(self._recorder(name, cluster))
            cluster.subscribe_roll_back(lambda name=name: self._record_restore(name))
        for name in TARGETS:
            self.join(name, name)
        on_hub = (*_WATCHED, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE)
        self.rig.start_watcher(HUB, resources=on_hub)
        for name in TARGETS:
            self.rig.start_watcher(name, resources=_WATCHED)
        provider = ProviderSettings.model_validate({"type": "cluster"})
        self.rig.shared = self.rig.shared.model_copy(update={"providers": [provider]})
        self.rig.start_reconciler()

    def join(self, name: str, server: str, **labels: str) -> None:
        """Add a cluster to the fleet; one behind an agent has no kubeconfig on the hub."""
        all_labels = {"tier": "a" if server in TARGETS[:2] else "b", "all": "yes", **labels}
        all_labels["region"] = f"r-{server}"
        reference = {"namespace": FLEET_NAMESPACE, "name": f"{name}-kubeconfig"}
        spec: Json = {"kubeconfigSecretRef": reference}
        if server in BEHIND_AGENTS:
            spec = {"access": "Agent"}
            self.agents.join(name, server)
        else:
            self.point(name, server)
        metadata = {"name": name, "labels": all_labels}
        self.hub.create(CLUSTER_RESOURCE, {"metadata": metadata, "spec": spec})
        self.names[name] = server

    def point(self, name: str, server: str) -> None:
        """Let the kubeconfig of a cluster lead to an API server."""
        document = access_to(self.rig.servers, server)
        secret = {
            "metadata": {
                "name": f"{name}-kubeconfig",
                "namespace": FLEET_NAMESPACE,
                "labels": {"fleetbus.dev/kubeconfig": "true"},
            },
            "data": {"kubeconfig": base64.b64encode(orjson.dumps(document)).decode()},
        }
        if self.hub.get(_SECRETS, FLEET_NAMESPACE, f"{name}-kubeconfig"):
            self.hub.update(_SECRETS, secret)
        else:
            self.hub.create(_SECRETS, secret)

    def leave(self, name: str, *, recorded: bool) -> None:
        """Remove a cluster from the fleet, by an unjoin or by a careless deletion.

        Only an unjoin ends its agent: it revokes the agent's nkey.
        """
        cluster = self.hub.get(CLUSTER_RESOURCE, None, name)
        if cluster is None:
            return
        if recorded:
            metadata = {
                "name": f"left-{name}",
                "namespace": FLEET_NAMESPACE,
                "labels": {LEFT_LABEL: name},
                "annotations": {LEFT_UID: cluster["metadata"]["uid"]},
            }
            if self.hub.get(MAPS, FLEET_NAMESPACE, f"left-{name}"):
                self.hub.delete(MAPS, FLEET_NAMESPACE, f"left-{name}")
            self.hub.create(MAPS, {"metadata": metadata})
            self.agents.leave(name)
        self.hub.delete(CLUSTER_RESOURCE, None, name)

    async def rename(self, *, recorded: bool) -> None:
        """Let a target join under another name."""
        self.leave(RENAMED, recorded=recorded)
        await self.rig.stop_watcher(RENAMED)
        self.join(NEW_NAME, RENAMED)
        self.rig.start_watcher(NEW_NAME, context=RENAMED, resources=_WATCHED)

    async def rename_back(self) -> None:
        """Let it have its own name again; the other one is unjoined."""
        if self.hub.get(CLUSTER_RESOURCE, None, NEW_NAME):
            self.leave(NEW_NAME, recorded=True)
            await self.rig.stop_watcher(NEW_NAME)
        if not self.hub.get(CLUSTER_RESOURCE, None, RENAMED):
            self.join(RENAMED, RENAMED)
            self.rig.start_watcher(RENAMED, resources=_WATCHED)

    def labels(self, name: str, **labels: str | None) -> None:
        """Relabel a cluster; None removes a label."""
        self.hub.patch(CLUSTER_RESOURCE, None, name, {"metadata": {"labels": labels}})

    # --- history ------------------------------------------------------------------------------

    def _recorder(self, name: str, cluster: Cluster) -> Callable[[Change], None]:
        def record(change: Change) -> None:
            agent = cluster.truth.entries[-1].agent
            if agent.startswith(AGENT) and change.resource != "events":
                self.last_write = time.monotonic()
            if change.resource in _HISTORY and self._matters(change.new):
                self._write(name, change.type, change.resource, change.new, agent)

        return record

    @staticmethod
    def _matters(obj: Json) -> bool:
        return obj["metadata"].get("namespace", NAMESPACE) == NAMESPACE

    def _write(self, cluster: str, kind: str, resource: str, obj: Json, agent: str) -> None:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        line = {"t": time.time(), "cluster": cluster, "type": kind, "resource": resource}
        recorded = {**obj, "metadata": metadata}
        if resource == "multiclusterresources":
            recorded["status"] = {"held": (obj.get("status") or {}).get("held")}
        self._history.write(orjson.dumps(line | {"agent": agent, "object": recorded}) + b"\n")

    def _record_restore(self, name: str) -> None:
        """After a restore: everything that matters, as it is now."""
        line = {"t": time.time(), "cluster": name, "type": "RESTORED", "resource": "", "agent": ""}
        self._history.write(orjson.dumps(line | {"object": {}}) + b"\n")
        resources = (
            (*_WATCHED, MULTI_CLUSTER_RESOURCES, CLUSTER_RESOURCE) if name == HUB else _WATCHED
        )
        for resource in resources:
            for obj in self.rig.clusters[name].shared(resource):
                if self._matters(obj):
                    self._write(name, "PRESENT", resource.rpartition("/")[2], obj, "")

    def restore_hub(self, version: int) -> None:
        """Set the hub back to a backup."""
        with suppress(ValueError):
            self.hub.roll_back(version)

    def flush(self) -> None:
        """Write what the buffers hold."""
        self._history.flush()
        lines = [orjson.dumps(line) + b"\n" for line in self.log]
        (self.folder / "log.jsonl").write_bytes(b"".join(lines))


@asynccontextmanager
async def running_world(folder: Path, mutation: str = "") -> AsyncGenerator[World]:
    """Everything; at the end no process is left. Call it from the main thread."""
    log: list[Json] = []
    async with (
        nats_server(store_dir=folder / "nats") as nats,
        valkey_server(dir=folder / "valkey") as valkey,
        fleet_rig(
            *TARGETS,
            HUB,
            folder=folder,
            nats_url=nats.url,
            valkey_url=valkey.url,
            hub=HUB,
            resources=_WATCHED,
            tokens=dict.fromkeys(BEHIND_AGENTS, TOKEN),
        ) as rig,
    ):
        await let_agents_log_in(nats, folder)
        _hide_targets(rig, folder)
        with (folder / "history.jsonl").open("wb") as history:
            async with (
                running_processes(folder, rig.shared, log, mutation) as processes,
                open_agents(folder, processes, rig.servers, nats) as agents,
            ):
                world = World(rig, processes, agents, log, folder, history)
                world.set_up()
                yield world
                world.flush()


def _hide_targets(rig: Rig, folder: Path) -> None:
    """Let watchers, which run in the members, have the token, and the hub's services nothing."""
    rig.servers.write_kubeconfig(rig.kubeconfig, token=dict.fromkeys(BEHIND_AGENTS, TOKEN))
    of_hub = folder / "hub.kubeconfig"
    of_hub.write_bytes(orjson.dumps(access_to(rig.servers, HUB)))
    rig.shared = rig.shared.model_copy(update={"hub_kubeconfig": of_hub})
