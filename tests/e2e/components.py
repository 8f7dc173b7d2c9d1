"""The services of a campaign as processes with their own timers, and the rights of the watchers.

Each watcher is a ServiceAccount with the ClusterRole that docs/watcher.md gives, and nothing else.
Its token is bound to a Secret, so that it is refused as soon as the Secret is gone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.planes import ADMIN_TOKEN, Plane
from fleetbus_devfleet.processes.children import Child, stop_children
from fleetbus_devfleet.processes.servers import NatsServer, ValkeyServer, nats_server, valkey_server
from support.api.conformance_client import Api
from support.api.conformance_server import from_kubeconfig
from support.processes.programs import installed

DOCUMENT: Final = Path(__file__).parents[2] / "docs/watcher.md"
SYSTEM: Final = "fleetbus-system"
ACCOUNT: Final = "fleetbus-watcher"
PROJECTOR: Final = "projector"

_BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_ACCOUNTS = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts"
_SECRETS = f"/api/v1/namespaces/{SYSTEM}/secrets"


@dataclass
class Access:
    """The rights of the watchers of one cluster."""

    plane: Plane
    api: Api
    kubeconfig: Path = Path()
    _tokens: int = 0

    def set_up(self) -> None:
        """Make the account, its role and its first token."""
        _made(self.api.post("/api/v1/namespaces", {"metadata": {"name": SYSTEM}}))
        _made(self.api.post(_ACCOUNTS, {"metadata": {"name": ACCOUNT}}))
        _made(self.api.post(_ROLES, documented_role()))
        self.allow()
        self.issue()

    def allow(self) -> None:
        """Bind the role."""
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
        body = {"metadata": {"name": ACCOUNT}, "subjects": [subject], "roleRef": role}
        _made(self.api.post(_BINDING, body))

    def forbid(self) -> None:
        """Take the binding away."""
        _made(self.api.delete(f"{_BINDING}/{ACCOUNT}"))

    def rotate(self) -> None:
        """Write a new token into the kubeconfig, and let the old one be refused."""
        old = f"token-{self._tokens}"
        self.issue()
        self._revoke(old)

    def revoke(self) -> None:
        """Let the present token be refused; the kubeconfig keeps it."""
        self._revoke(f"token-{self._tokens}")

    def issue(self) -> None:
        """Write a new token into the kubeconfig."""
        self._tokens += 1
        name = f"token-{self._tokens}"
        secret = _made(self.api.post(_SECRETS, {"metadata": {"name": name}}))
        uid = secret["metadata"]["uid"]
        bound = {"kind": "Secret", "apiVersion": "v1", "name": name, "uid": uid}
        request: dict[str, Any] = {
            "spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}
        }
        token = _made(self.api.post(f"{_ACCOUNTS}/{ACCOUNT}/token", request))["status"]["token"]
        self.kubeconfig = self.plane.write_kubeconfig("watcher", token=token)

    def _revoke(self, name: str) -> None:
        """A token is refused as soon as the Secret that it is bound to is gone."""
        _made(self.api.delete(f"{_SECRETS}/{name}"))


def documented_role() -> dict[str, Any]:
    """The ClusterRole that the documentation tells people to apply."""
    for block in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        # Other blocks are of other forms, and one is a list.
        for document in list(yaml.load_all(block, yaml.CSafeLoader)):
            if "ClusterRole" in str(document) and document["kind"] == "ClusterRole":
                return document
    raise LookupError(f"{DOCUMENT} has no ClusterRole")


def _made(reply: Any) -> dict[str, Any]:
    assert reply.status < 300, reply.text
    return reply.body


@dataclass
class Services:
    """The processes.

    Attributes:
        children: by name; a watcher is called as its replica.
    """

    folder: Path
    nats: NatsServer
    valkey: ValkeyServer
    access: Mapping[str, Access]
    children: dict[str, Child] = field(default_factory=dict[str, Child])

    @property
    def apis(self) -> dict[str, Api]:
        """Clients with all rights, by cluster."""
        return {name: access.api for name, access in self.access.items()}

    def watchers_of(self, cluster: str) -> list[str]:
        """The replicas that watch a cluster."""
        return [name for name in self.children if name.rpartition("-")[0] == cluster]

    def start_projector(self) -> None:
        """Start the reconciler service, without a controller."""
        command = installed("fleetbus-reconciler")
        self._start(PROJECTOR, command, FLEETBUS_PROVIDERS=json.dumps([self._provider()]))

    def start_watchers(self, replicas: Mapping[str, int]) -> None:
        """Start so many watchers of each cluster."""
        for cluster, count in replicas.items():
            for number in range(count):
                self._start_watcher(cluster, f"{cluster}-{number}")

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.children[name].kill()

    def respawn(self, name: str) -> None:
        """Start it again after it was killed."""
        self.children[name].respawn()

    def raise_if_ended(self) -> None:
        """Raise ChildError if one ended that nobody killed."""
        for child in self.children.values():
            child.raise_if_ended()

    def _provider(self) -> dict[str, Any]:
        paths = [str(access.kubeconfig) for access in self.access.values()]
        return {"type": "kubeconfig", "paths": paths}

    def _start_watcher(self, cluster: str, replica: str) -> None:
        arguments = ("--cluster", cluster, "--replica", replica, "--context", cluster)
        kubeconfig = str(self.access[cluster].kubeconfig)
        command = installed("fleetbus-watcher", *arguments, "--kubeconfig", kubeconfig)
        self._start(replica, command)

    def _start(self, name: str, command: list[str], **environment: str) -> None:
        shared = {
            "FLEETBUS_NATS_URL": self.nats.url,
            "FLEETBUS_REDIS_URL": self.valkey.url,
            "FLEETBUS_HEALTH_PORT": "0",
        }
        variables = {**os.environ, **shared, **environment}
        self.children[name] = Child(name, command, log=self.folder / f"{name}.log", env=variables)


@asynccontextmanager
async def services(planes: Mapping[str, Plane], folder: Path) -> AsyncGenerator[Services]:
    """NATS, Valkey and what is started inside, until the block ends; folder is for the logs."""
    access: dict[str, Access] = {}
    for name, plane in planes.items():
        path = plane.write_kubeconfig("admin", token=ADMIN_TOKEN)
        access[name] = Access(plane, Api(from_kubeconfig(path)))
        access[name].set_up()
    async with (
        nats_server(store_dir=folder / "nats") as nats,
        valkey_server(dir=folder / "valkey") as valkey,
    ):
        opened = Services(folder, nats, valkey, access)
        try:
            yield opened
        finally:
            await stop_children(list(opened.children.values()))
            for plane_access in access.values():
                plane_access.api.http.close()
