"""The NATS and the Valkey of the chart as pods, with what the chart renders for them.

The test runs in `kubelet.isolation`, where pods have a network of their own; the names of Services
and pods lead to them in the test, too.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from fleetbus.process.access.nats import NatsAccess, nats_access
from fleetbus.process.access.store import StoreAccess, store_access
from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, User, serve
from fleetbus_emulator.controllers import CONTROL_PLANE, simulate
from support.api.rendered_chart import NAMESPACE, Object, find, render, secret
from support.eventually import eventually
from support.processes.programs import module

_API: Final = "10.1.0.1"
_IP: Final = shutil.which("ip") or "ip"
_MOUNT: Final = shutil.which("mount") or "mount"
_KINDS: Final = {
    "Secret": "v1/secrets",
    "Service": "v1/services",
    "ServiceAccount": "v1/serviceaccounts",
    "StatefulSet": "apps/v1/statefulsets",
}
_START: Final = timedelta(minutes=3)
"""Several servers start at once, on a machine that does other things."""


@dataclass
class StorePods:
    """The pods of one store.

    Attributes:
        store: nats or valkey.
        objects: everything that the chart renders.
    """

    store: str
    objects: list[Object]
    cluster: Cluster
    folder: Path

    def name(self, number: int) -> str:
        """The name of a pod."""
        return f"fb-fleetbus-{self.store}-{number}"

    def pod(self, number: int) -> Object:
        """A pod as the API server has it; empty if there is none."""
        return self.cluster.get("v1/pods", NAMESPACE, self.name(number)) or {}

    def is_ready(self, number: int) -> bool:
        """Whether its probes succeed."""
        conditions = self.pod(number).get("status", {}).get("conditions", ())
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    async def ready(self) -> None:
        """Wait until all of them are."""
        await eventually(lambda: all(map(self.is_ready, range(3))), _START)

    def delete(self, number: int) -> None:
        """As `kubectl delete pod` does; another one comes in its place."""
        self.cluster.delete("v1/pods", NAMESPACE, self.name(number))

    def run(self, number: int, *command: str, **environment: str) -> str:
        """Run a program in a container of a pod, like `kubectl exec`; returns its output."""
        container = self._container(number, self.store)
        done = subprocess.run(
            [*container["enter"], *command],
            env=container["environment"] | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        return done.stdout + done.stderr

    def _container(self, number: int, name: str) -> Object:
        path = self.folder / "containers" / NAMESPACE / self.name(number) / f"{name}.json"
        return json.loads(path.read_text())

    def kill(self, number: int) -> None:
        """End all processes of a pod at once, as a power cut does; they are started again."""
        for path in (self.folder / "containers" / NAMESPACE / self.name(number)).glob("*.json"):
            enter = json.loads(path.read_text())["enter"]
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(enter[enter.index("--target") + 1]), signal.SIGKILL)

    def lose_disk(self, number: int) -> None:
        """While it is down: remove everything that a pod has stored."""
        claim = self.folder / "claims" / NAMESPACE / f"data-{self.name(number)}"
        for path in claim.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def cut(self, number: int) -> None:
        """Let nothing reach a pod, or leave it."""
        self._link(number, "down")

    def heal(self, number: int) -> None:
        """Let everything pass again."""
        self._link(number, "up")

    def _link(self, number: int, state: str) -> None:
        third, fourth = self.pod(number)["status"]["podIP"].split(".")[2:]
        subprocess.run([_IP, "link", "set", f"pod{third}.{fourth}", state], check=True)

    def nats(self, user: str) -> NatsAccess:
        """The way of a component to NATS, and its login."""
        return nats_access(self._settings("NATS", user))

    def valkey(self, user: str) -> StoreAccess:
        """The same to Valkey."""
        return store_access(self._settings("REDIS", user))

    def _settings(self, store: str, user: str) -> dict[str, Any]:
        """The rendered settings, with files as they are mounted."""
        prefix, place = f"FLEETBUS_{store}_", f"/etc/fleetbus/{store.lower()}"
        login = secret(self.objects, f"fb-fleetbus-{user}-{store.lower()}")
        folder = self.folder / f"{user}-{store.lower()}"
        folder.mkdir(exist_ok=True)
        (folder / "password").write_text(login["password"])
        tls = find(self.objects, "Secret", f"fb-fleetbus-{self.store}-tls")["data"]
        (folder / "ca.crt").write_bytes(base64.b64decode(tls["ca.crt"]))
        deployment = find(self.objects, "Deployment", f"fb-fleetbus-{user}")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return {
            variable["name"].removeprefix(prefix).lower(): (
                variable["value"].replace(place, str(folder))
                if "value" in variable
                else login["username"]
            )
            for variable in container["env"]
            if variable["name"].startswith(prefix)
        }


@asynccontextmanager
async def store_pods(store: str, values: Object, folder: Path) -> AsyncGenerator[StorePods]:
    """Run the pods of a store until the block ends."""
    objects = render(values)
    admin = User("admin", ("system:masters", "system:authenticated"))
    cluster = Cluster("hub", tokens={"admin": admin}, authorize="rbac")
    async with (
        serve([cluster], host=_API, tls=True) as servers,
        simulate([cluster], controllers=CONTROL_PLANE),
    ):
        servers.write_kubeconfig(folder / "kubeconfig", "admin")
        cluster.create("v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for obj in objects:
            name = obj["metadata"]["name"].removeprefix("fb-fleetbus-")
            if obj["kind"] in _KINDS and name.startswith(store):
                cluster.create(_KINDS[obj["kind"]], obj, NAMESPACE)
        options = ("--kubeconfig", str(folder / "kubeconfig"), "--folder", str(folder))
        command = module("support.kubelet", *options, "--hurry", "4")
        kubelet = Child("kubelet", command, log=folder / "kubelet.log")
        try:
            _share_names(folder)
            pods = StorePods(store, objects, cluster, folder)
            await pods.ready()
            yield pods
        finally:
            await kubelet.stop(patience=timedelta(seconds=20))


def _share_names(folder: Path) -> None:
    """Let this process find the names that pods find."""
    hosts = folder / "hosts" / NAMESPACE
    hosts.parent.mkdir(parents=True, exist_ok=True)
    hosts.touch()
    subprocess.run([_MOUNT, "--bind", str(hosts), "/etc/hosts"], check=True)
