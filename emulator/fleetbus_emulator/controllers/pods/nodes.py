"""Simulated nodes: their objects, and which addresses they have."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.json_tree import listing
from fleetbus_emulator.apiserver.kubernetes_version import GIT_VERSION
from fleetbus_emulator.controllers.runtime.index import Ref

if TYPE_CHECKING:
    from fleetbus_emulator.controllers.runtime.view import View
    from fleetbus_emulator.controllers.runtime.world import World

JsonObject = dict[str, Any]
CAPACITY = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "1000"}
HEALTH = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
)


def create_nodes(world: World, count: int) -> None:
    """Create `sim-node-1` to `sim-node-<count>` where they are missing."""
    for number in range(1, count + 1):
        name = f"sim-node-{number}"
        if Ref("", "nodes", "", name) not in world.view:
            labels = {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node.kubernetes.io/instance-type": "simulated",
            }
            node = {"metadata": {"name": name, "labels": labels}, "spec": {}}
            world.create("v1/nodes", {**node, "status": healthy_status(name, world.now())})


def healthy_status(name: str, now: str) -> JsonObject:
    """The status of a node whose kubelet is healthy."""
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    conditions = [
        {"type": kind, "status": status, "reason": reason, **times}
        for kind, status, reason in HEALTH
    ]
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": node_address(name)},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": node_info(name, "fleetbus devfleet (simulated)"),
    }


def node_info(name: str, image: str, kernel: str = "6.1.0") -> JsonObject:
    """The nodeInfo of a node; clients with typed models insist on every field."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {
        "architecture": "amd64",
        "bootID": str(uuid.UUID(digest[:32])),
        "containerRuntimeVersion": "containerd://1.7.24",
        "kernelVersion": kernel,
        "kubeProxyVersion": GIT_VERSION,
        "kubeletVersion": GIT_VERSION,
        "machineID": digest[:32],
        "operatingSystem": "linux",
        "osImage": image,
        "systemUUID": str(uuid.UUID(digest[32:])),
    }


def node_address(name: str) -> str:
    """An address of the network 172.18.0.0/16 for a node that has none."""
    digest = hashlib.sha256(name.encode()).digest()
    return f"172.18.{digest[0]}.{digest[1] % 254 + 1}"


def host_ip(view: View, name: str) -> str:
    """The address of a node, also of one that has no object."""
    node = view.get(Ref("", "nodes", "", name))
    for address in listing(node, "status", "addresses"):
        if address.get("type") == "InternalIP":
            return str(address.get("address"))
    return node_address(name)
