"""Objects of the cluster itself: namespaces, nodes, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.controllers.namespace_defaults import (
    CERTIFICATE,
    DESCRIPTION,
    ROOT_CERTIFICATE,
    WHY,
)
from fleetbus_emulator.controllers.pods.nodes import CAPACITY, HEALTH, node_info
from fleetbus_emulator.generate.objects.naming import NODE_NETWORK
from fleetbus_emulator.generate.objects.pods import Node
from fleetbus_emulator.generate.objects.words import EVENTS, MACHINES, ZONES, Zipf
from fleetbus_emulator.generate.objects.workloads import Made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
NAMESPACES = "v1/namespaces"
SEED_LABEL = "devfleet.fleetbus.dev/seed"
NODE_LEASES = "kube-node-lease"
MINUTE = 60.0
KERNEL = "6.1.102-111.182.amzn2023.x86_64"


def seed_value(seed: int) -> str:
    """The value of the label that names the seed; it must not begin with a minus."""
    return str(seed) if seed >= 0 else f"minus{seed}"


def namespace(naming: Naming, managed_fields: ManagedFields, seed: int) -> Iterator[Made]:
    """A namespace and what each of them has from the beginning."""
    name, age = naming.namespace(), naming.age()
    labels = {"kubernetes.io/metadata.name": name, SEED_LABEL: seed_value(seed)}
    meta = naming.metadata(name, "", age, labels)
    obj: JsonObject = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": meta,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }
    managed_fields.keep(obj, "kubectl-create")
    yield NAMESPACES, obj
    meta = naming.metadata("default", name, age)
    yield "v1/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    meta = naming.metadata(ROOT_CERTIFICATE, name, age, annotations={WHY: DESCRIPTION})
    config: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    yield "v1/configmaps", {**config, "data": {"ca.crt": CERTIFICATE}}


def node(naming: Naming, managed_fields: ManagedFields) -> tuple[Node, list[Made]]:
    """A node and its heartbeat."""
    address = naming.address(NODE_NETWORK)
    name = naming.unique(f"ip-{address.replace('.', '-')}.eu-west-1.compute.internal")
    age = naming.age()
    zone, machine = naming.random.choice(ZONES), naming.random.choice(MACHINES)
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": machine,
        "topology.kubernetes.io/region": "eu-west-1",
        "topology.kubernetes.io/zone": zone,
    }
    meta = naming.metadata(name, "", age, labels)
    created = meta["creationTimestamp"]
    obj: JsonObject = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": meta,
        "spec": {"providerID": f"aws:///{zone}/i-{naming.digest()[:17]}"},
        "status": _node_status(naming, name, address, created),
    }
    managed_fields.keep(obj, "kubelet", controller="kubelet")
    meta = naming.metadata(name, NODE_LEASES, age)
    lease: JsonObject = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": naming.ago(10).replace("Z", ".000000Z"),
        },
    }
    managed_fields.keep(lease, "kubelet")
    both: list[Made] = [("v1/nodes", obj), ("coordination.k8s.io/v1/leases", lease)]
    return Node(name, address, [{"ip": address}], zone), both


def _node_status(naming: Naming, name: str, address: str, created: str) -> JsonObject:
    times = {"lastHeartbeatTime": naming.ago(MINUTE), "lastTransitionTime": created}
    images = [
        {
            "names": [f"registry.example.com/base/layer-{number}@sha256:{naming.digest()}"],
            "sizeBytes": naming.random.randint(1_000_000, 900_000_000),
        }
        for number in range(20)
    ]
    return {
        "addresses": [
            {"address": address, "type": "InternalIP"},
            {"address": name, "type": "Hostname"},
        ],
        "allocatable": CAPACITY,
        "capacity": CAPACITY,
        "conditions": [
            {"type": kind, "status": status, "reason": reason, **times}
            for kind, status, reason in HEALTH
        ],
        "images": images,
        "nodeInfo": node_info(name, "Amazon Linux 2023.5.20240805", KERNEL),
    }


def event(naming: Naming, managed_fields: ManagedFields, pod: JsonObject) -> Made:
    """Something that happened to a pod within the last hour."""
    kind, reason, message = Zipf(EVENTS).pick(naming.random)
    meta, age = pod["metadata"], naming.random.uniform(0, 60 * MINUTE)
    metadata = naming.metadata(f"{meta['name']}.{naming.digest()[:16]}", meta["namespace"], age)
    obj: JsonObject = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": metadata,
        "count": naming.random.choice((1, 1, 1, 3, 12)),
        "eventTime": None,
        "firstTimestamp": metadata["creationTimestamp"],
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": meta["name"],
            "namespace": meta["namespace"],
            "uid": meta["uid"],
        },
        "lastTimestamp": naming.ago(age / 2),
        "message": message,
        "reason": reason,
        "reportingComponent": "kubelet",
        "reportingInstance": pod["spec"]["nodeName"],
        "source": {"component": "kubelet", "host": pod["spec"]["nodeName"]},
        "type": kind,
    }
    managed_fields.keep(obj, "kubelet")
    return "v1/events", obj
