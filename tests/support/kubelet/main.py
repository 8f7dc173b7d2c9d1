"""A kubelet for tests: it runs the pods of an API server as local processes.

Deployments, StatefulSets and Jobs are made into pods by the cluster's own controllers, so what runs
is what the API server has stored. Each container has the rendered command, environment, volumes and
credentials, and sees nothing else of this machine (`root`). There is one node. Not enforced:
users and capabilities of a securityContext, resources, NetworkPolicies; `images` stands for a
registry; logs are files, and nobody can attach.

    python tests/run.py support.kubelet --kubeconfig PATH --folder PATH     inside of `isolated`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import logging
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import httpx

from support.kubelet.api import Api, Object
from support.kubelet.images import Images
from support.kubelet.isolation import is_isolated
from support.kubelet.network import Network
from support.kubelet.pod import Node, Pod

log = logging.getLogger("kubelet")
_NODE = "node-1"
_POLL = 0.2
_HEARTBEAT = 5.0


def _addresses(first: str) -> Iterator[str]:
    return (str(ip_address(first) + number) for number in itertools.count())


class Kubelet:
    """Follows the pods of one API server.

    Args:
        node: the node that its pods are on.
        network: of the cluster.
        first: address of the first pod.
    """

    def __init__(self, node: Node, network: Network, first: str) -> None:
        self._node = node
        self._pods: dict[str, Pod] = {}
        self._addresses = _addresses(first)
        self._network = network

    async def run(self) -> None:
        """Run pods until cancelled; then none of their processes is left."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._beat(), name="heartbeat")
                group.create_task(self._follow(group), name="follow")
        finally:
            for pod in self._pods.values():
                pod.kill()
            await self._network.aclose()

    async def _follow(self, group: asyncio.TaskGroup) -> None:
        while True:
            try:
                pods = await self._node.api.list("/api/v1/pods")
                services = await self._node.api.list("/api/v1/services")
            except httpx.HTTPError as e:
                log.warning("%s", e)
            else:
                await self._take(pods, group)
                places = {pod["metadata"]["namespace"] for pod in pods}
                hosts = {place: self._node.hosts(place) for place in places}
                await self._network.update(services, list(self._pods.values()), hosts)
            await asyncio.sleep(_POLL)

    async def _take(self, pods: list[Object], group: asyncio.TaskGroup) -> None:
        for pod in pods:
            try:
                await self._take_pod(pod, group)
            except httpx.HTTPError as e:  # it may be gone by now; the next list says so
                log.warning("%s: %s", pod["metadata"]["name"], e)
        gone = self._pods.keys() - {pod["metadata"]["uid"] for pod in pods}
        for uid in gone:  # deleted without a grace period
            self._pods[uid].latest["metadata"].update(
                deletionTimestamp="now", deletionGracePeriodSeconds=0
            )

    async def _take_pod(self, pod: Object, group: asyncio.TaskGroup) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid].latest = pod
        elif "deletionTimestamp" in pod["metadata"]:
            meta = pod["metadata"]
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            await self._node.api.delete(path, gracePeriodSeconds=0)
        elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            await self._schedule(pod)
            self._pods[uid] = Pod(self._node, pod, next(self._addresses))
            group.create_task(self._run(uid), name=pod["metadata"]["name"])

    async def _schedule(self, pod: Object) -> None:
        if pod["spec"].get("nodeName"):
            return
        meta = pod["metadata"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node.name}
        body = {"metadata": {"name": meta["name"]}, "target": target}
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
        await self._node.api.post(path, {"apiVersion": "v1", "kind": "Binding", **body})
        pod["spec"]["nodeName"] = self._node.name

    async def _run(self, uid: str) -> None:
        await self._pods[uid].run()
        del self._pods[uid]

    async def _beat(self) -> None:
        """Keep the node there: the pods of one that is silent are taken away."""
        path = f"/api/v1/nodes/{self._node.name}"
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if await self._node.api.get(path) is None:
                    await self._node.api.post("/api/v1/nodes", {"metadata": {"name": _NODE}})
                now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
                await self._node.api.patch(f"{path}/status", {"status": {"conditions": [ready]}})
            await asyncio.sleep(_HEARTBEAT)


async def run(args: argparse.Namespace) -> None:
    """Run pods until SIGTERM."""
    api, folder = Api(args.kubeconfig), args.folder
    node = Node(_NODE, api, Images(folder), folder, args.hurry, tuple(args.unreachable))
    kubelet = Kubelet(node, Network(args.names), args.first)
    task = asyncio.create_task(kubelet.run(), name="kubelet")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await task
    finally:
        await api.aclose()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for logs and volumes")
    parser.add_argument("--hurry", type=float, default=1.0, help="probe so many times as often")
    parser.add_argument("--first", default="10.244.0.2", help="address of the first pod")
    parser.add_argument("--names", type=Path, help="lines of a hosts file that all pods have")
    parser.add_argument(
        "--unreachable", action="append", default=[], help="an address to which pods have no route"
    )
    args = parser.parse_args()
    if not is_isolated():
        sys.exit("the kubelet of the tests runs in namespaces of its own: start it by `isolated`")
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
