"""The services as processes of their own, with their own timers, over the clusters of a test."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx

from fleetbus_devfleet.processes.children import Child
from support.eventually import eventually
from support.processes.programs import installed
from support.rigs.mixed_access import mixed
from support.servers.plain_http import http_client

_TESTS: Final = Path(__file__).parents[2]
_READY: Final = timedelta(seconds=30)


@dataclass(frozen=True)
class Processes:
    """Ways to start services; the caller that starts one stops it.

    Attributes:
        folder: for their logs.
        kubeconfig: of all clusters; a context is named as its cluster.
        resources: what is watched.
        behind_agents: the clusters that are called through agents.
    """

    folder: Path
    kubeconfig: Path
    nats_url: str
    redis_url: str
    resources: Sequence[str]
    behind_agents: Sequence[str] = ()

    def reconciler(
        self, name: str, *modules: str, projector: bool = True, **environment: str
    ) -> Child:
        """The reconciler service with these modules."""
        flag = {"FLEETBUS_RECONCILER_PROJECTOR": "true" if projector else "false"}
        return self._child(name, installed("fleetbus-reconciler", *modules), flag | environment)

    def pool_watcher(self, name: str, **environment: str) -> Child:
        """A watcher of all clusters."""
        return self._child(name, installed("fleetbus-watcher", "--pool"), environment)

    def program(self, name: str, command: Sequence[str], **environment: str) -> Child:
        """Another program that runs a service."""
        return self._child(name, command, environment)

    def distributor(
        self, name: str, command: Sequence[str] | None = None, **environment: str
    ) -> Child:
        """The distributor, or another program that runs it."""
        return self._child(name, command or installed("fleetbus-distributor"), environment)

    def query_api(self, name: str, **environment: str) -> Child:
        """The query API, on loopback and without authentication."""
        open_to_all = {"FLEETBUS_QUERY_API_AUTHENTICATION": "none"}
        return self._child(name, installed("fleetbus-query-api"), open_to_all | environment)

    def watcher(self, cluster: str, *, kubeconfig: Path | None = None, **environment: str) -> Child:
        """The watcher of one cluster."""
        arguments = ("--cluster", cluster, "--replica", f"{cluster}-0", "--context", cluster)
        path = str(kubeconfig or self.kubeconfig)
        command = installed("fleetbus-watcher", *arguments, "--kubeconfig", path)
        return self._child(f"watcher-{cluster}", command, environment)

    def agent(self, cluster: str) -> Child:
        """The agent of one cluster."""
        environment = {
            "FLEETBUS_AGENT_CLUSTER": cluster,
            "FLEETBUS_AGENT_KUBECONFIG": str(self.kubeconfig),
            "FLEETBUS_AGENT_CONTEXT": cluster,
        }
        return self._child(f"agent-{cluster}", installed("fleetbus-agent"), environment)

    def _child(self, name: str, command: Sequence[str], environment: dict[str, str]) -> Child:
        kubeconfig = {"type": "kubeconfig", "paths": [str(self.kubeconfig)]}
        providers = [mixed(kubeconfig, self.behind_agents)]
        return Child(
            name,
            command,
            log=self.folder / f"{name}.log",
            env=os.environ
            | {
                "FLEETBUS_NATS_URL": self.nats_url,
                "FLEETBUS_REDIS_URL": self.redis_url,
                "FLEETBUS_PROVIDERS": json.dumps(providers),
                "FLEETBUS_WATCHER_RESOURCES": json.dumps(list(self.resources)),
                "FLEETBUS_HEALTH_PORT": "0",
                "FLEETBUS_HEALTH_PORT_FILE": str(self._port_file(name)),
            }
            # for the provider `mixed`
            | ({"PYTHONPATH": str(_TESTS)} if self.behind_agents else {})
            | environment,
        )

    async def ready(self, child: Child, within: timedelta = _READY) -> None:
        """Wait until one of them is ready; ChildError if it ends instead."""
        port_file = self._port_file(child.name)
        await child.wait_until(port_file.exists, within=within)
        async with http_client(f"http://127.0.0.1:{port_file.read_text().strip()}") as client:

            async def is_ready() -> bool:
                child.raise_if_ended()
                with suppress(httpx.TimeoutException):  # as long as it has much to do
                    return (await client.get("/readyz")).is_success
                return False

            await eventually(is_ready, within)

    def _port_file(self, name: str) -> Path:
        return self.folder / f"{name}.port"
