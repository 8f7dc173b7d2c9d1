"""One pod, from its volumes to its end."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from support.kubelet.api import Api, Object
from support.kubelet.container import Container
from support.kubelet.environment import NotReadyError, References, command_of
from support.kubelet.images import ImageError, Images
from support.kubelet.root import Mount, Root
from support.kubelet.sandbox import Sandbox
from support.kubelet.volumes import Volumes, with_token

Work = Callable[[], Awaitable[None]]

log = logging.getLogger("kubelet")
_RETRY = 0.5
_STATUS = 0.1
_VOLUMES = 1.0


@dataclass(frozen=True)
class Node:
    """The node, as its pods need it.

    Attributes:
        folder: for logs, volumes and claims.
        hurry: probes come so many times as often as they are declared.
        unreachable: addresses to which its pods have no route.
    """

    name: str
    api: Api
    images: Images
    folder: Path
    hurry: float
    unreachable: tuple[str, ...] = ()

    def hosts(self, namespace: str) -> Path:
        """The file of names for the pods of a namespace."""
        path = self.folder / "hosts" / namespace
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path


class Pod:
    """A pod that runs here.

    Attributes:
        latest: as the API server has it.
        address: its own.
    """

    def __init__(self, node: Node, pod: Object, address: str) -> None:
        self._node = node
        self.latest = pod
        self.address = address
        meta = pod["metadata"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._folder = node.folder / "pods" / meta["uid"]
        self._spec = with_token(pod, node.api.authority)["spec"]
        claims = node.folder / "claims"
        full = {**pod, "spec": self._spec}
        self._volumes = Volumes(node.api, full, self._folder / "volumes", claims)
        self._sandbox = Sandbox(self._folder, meta["name"], address, node.unreachable)
        self._init = [
            self._container(container) for container in self._spec.get("initContainers", ())
        ]
        self._containers = [self._container(container) for container in self._spec["containers"]]
        self._initialized = not self._init
        self._message = ""
        self._started = _now()
        self._written: Object = {}

    @property
    def is_ready(self) -> bool:
        """Whether all containers are ready, and the gates are open."""
        conditions = self.latest.get("status", {}).get("conditions", ())
        true = {condition["type"] for condition in conditions if condition["status"] == "True"}
        gates = {gate["conditionType"] for gate in self._spec.get("readinessGates", ())}
        return all(container.is_ready for container in self._containers) and gates <= true

    async def run(self) -> None:
        """Run it until it is deleted; then it is gone from the API server, too."""
        async with asyncio.TaskGroup() as group:
            work = group.create_task(self._work(), name="work")
            status = group.create_task(self._report(), name="status")
            await self._deletion()
            work.cancel()
            status.cancel()
        await self._end()

    async def _deletion(self) -> None:
        while True:
            if "deletionTimestamp" in self.latest["metadata"]:
                return
            await asyncio.sleep(_STATUS)

    def kill(self) -> None:
        """End all processes at once."""
        for container in (*self._init, *self._containers):
            container.kill()
        self._sandbox.kill()

    async def _end(self) -> None:
        seconds = self.latest["metadata"].get("deletionGracePeriodSeconds", 30)
        grace = timedelta(seconds=seconds)
        await asyncio.gather(
            *(container.stop(grace) for container in (*self._init, *self._containers))
        )
        self._sandbox.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        uid = self.latest["metadata"]["uid"]
        while True:
            try:
                await self._node.api.delete(
                    self._path, gracePeriodSeconds=0, preconditions={"uid": uid}
                )
            except httpx.HTTPError as e:  # an API server that restarts, say
                log.warning("%s: %s", self._path, e)
                await asyncio.sleep(_RETRY)
            else:
                return

    # --- containers -----------------------------------------------------------------------------

    def _container(self, spec: Object) -> Container:
        meta = self.latest["metadata"]
        folder, place = self._node.folder, Path(meta["namespace"], meta["name"])
        is_init = spec in self._spec.get("initContainers", ())
        restart = self._spec.get("restartPolicy", "Always")
        return Container(
            spec=spec,
            root=self._root(spec),
            enter=self._sandbox.enter,
            log=folder / "logs" / place / f"{spec['name']}.log",
            state=folder / "containers" / place / f"{spec['name']}.json",
            address=self.address,
            restart="OnFailure" if is_init and restart != "Never" else restart,
            hurry=self._node.hurry,
        )

    def _root(self, spec: Object) -> Root:
        folder = self._folder / "roots" / spec["name"]
        security = {**self._spec.get("securityContext", {}), **spec.get("securityContext", {})}
        mounts = [
            Mount(
                self._volumes.place(volume_mount["name"]) / volume_mount.get("subPath", ""),
                volume_mount["mountPath"],
                volume_mount.get("readOnly", False),
            )
            for volume_mount in spec.get("volumeMounts", ())
        ]
        hosts = self._node.hosts(self.latest["metadata"]["namespace"])
        read_only = security.get("readOnlyRootFilesystem", False)
        return Root(
            folder=folder,
            images=self._node.images,
            image=spec["image"],
            volumes=mounts,
            hosts=hosts,
            is_read_only=read_only,
        )

    async def _work(self) -> None:
        await self._sandbox.start()
        await self._retry(self._volumes.update)
        for container in self._init:
            await self._run(container)
            if container.exit_status:
                return
        self._initialized = True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_volumes(), name="volumes")
            for container in self._containers:
                group.create_task(self._run(container), name=container.name)

    async def _run(self, container: Container) -> None:
        prepared: list[tuple[list[str], dict[str, str]]] = []

        async def prepare() -> None:
            self._check_user(container.spec)
            image = self._node.images.find(container.spec["image"])
            first = {**image.environment, **self._of_cluster()}
            environment = await self._references().environment(container.spec, first)
            prepared.append((command_of(container.spec, environment), environment))

        await self._retry(prepare, container)
        container.root.folder.mkdir(parents=True, exist_ok=True)
        await container.run(*prepared[0])

    def _check_user(self, spec: Object) -> None:
        security = {**self._spec.get("securityContext", {}), **spec.get("securityContext", {})}
        if security.get("runAsNonRoot") and not security.get("runAsUser"):
            raise NotReadyError("container has runAsNonRoot and image will run as root")

    def _of_cluster(self) -> dict[str, str]:
        api = self._node.api
        return {
            "HOSTNAME": self.latest["metadata"]["name"],
            "KUBERNETES_SERVICE_HOST": api.host,
            "KUBERNETES_SERVICE_PORT": str(api.port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(api.port),
        }

    def _references(self) -> References:
        status = {"podIP": self.address, "hostIP": self.address}
        return References(self._node.api, {**self.latest, "spec": self._spec, "status": status})

    async def _keep_volumes(self) -> None:
        while True:
            await asyncio.sleep(_VOLUMES)
            await self._retry(self._volumes.update)

    async def _retry(self, work: Work, container: Container | None = None) -> None:
        """Do it until nothing is missing; what is, is in the status meanwhile."""
        while True:
            try:
                await work()
            except (NotReadyError, ImageError, httpx.HTTPError) as e:
                if self._message != str(e):
                    log.warning("%s: %s", self._path, e)
                self._message = str(e)
                if container is not None:
                    container.waiting = "CreateContainerConfigError"
                await asyncio.sleep(_RETRY)
            else:
                self._message = ""
                return

    # --- status ---------------------------------------------------------------------------------

    async def _report(self) -> None:
        while True:
            status = self._status()
            if status != self._written:
                try:
                    await self._node.api.patch(f"{self._path}/status", {"status": status})
                    self._written = status
                except httpx.HTTPError as e:
                    log.warning("%s: %s", self._path, e)
                    await asyncio.sleep(_RETRY)
            await asyncio.sleep(_STATUS)

    def _status(self) -> Object:
        conditions = {
            "PodScheduled": True,
            "Initialized": self._initialized,
            "ContainersReady": all(container.is_ready for container in self._containers),
            "Ready": self.is_ready,
        }
        return {
            "phase": self._phase(),
            "message": self._message,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "10.0.0.1",
            "startTime": self._started,
            "conditions": [
                {"type": kind, "status": str(true), "lastTransitionTime": self._since(kind, true)}
                for kind, true in conditions.items()
            ],
            "initContainerStatuses": [container.status() for container in self._init],
            "containerStatuses": [container.status() for container in self._containers],
        }

    def _since(self, kind: str, true: bool) -> str:
        for condition in self._written.get("conditions", ()):
            if condition["type"] == kind and condition["status"] == str(true):
                return condition["lastTransitionTime"]
        return _now()

    def _phase(self) -> str:
        failed = [
            container
            for container in self._init
            if container.exit_status and container.restart == "Never"
        ]
        ended = [
            container
            for container in self._containers
            if "terminated" in container.status()["state"]
        ]
        if failed or (
            len(ended) == len(self._containers)
            and any(container.exit_status for container in ended)
        ):
            return "Failed"
        if len(ended) == len(self._containers):
            return "Succeeded"
        return "Running" if any(container.pid for container in self._containers) else "Pending"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
