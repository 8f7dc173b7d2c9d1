"""Pod templates and the pods that run of them.

The pods of a template share everything but their identity: that is what makes a hundred
thousand of them cheap. Nobody changes an object of a store, so nobody notices.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.generate.objects.managed_fields import EMPTY, ManagedFields, Tree, entry
from fleetbus_emulator.generate.objects.naming import POD_NETWORK
from fleetbus_emulator.generate.objects.words import REGISTRIES, SETTINGS, SIDECARS, Zipf

if TYPE_CHECKING:
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
CONDITIONS = (
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
)
NOTHING: JsonObject = {}
BACK_OFF = {"waiting": {"message": "back-off 5m0s", "reason": "CrashLoopBackOff"}}
CRASHED_SECONDS = 40.0  # ago
CRASHES = 7  # more than the simulated kubelet starts again
SIDECAR_COUNTS = Zipf((0, 1, 2), 2)
_REGISTRIES = Zipf(REGISTRIES)


@dataclass(frozen=True, slots=True)
class Node:
    """A node that pods run on."""

    name: str
    address: str
    addresses: list[JsonObject]  # the same, as the pods' hostIPs have it
    zone: str


# templates --------------------------------------------------------------------------------------


def template(naming: Naming, app: str, account: str, labels: JsonObject) -> JsonObject:
    """A pod template as the API server stores it: one to three containers, defaults filled in."""
    random = naming.random
    sidecars = random.sample(SIDECARS, k=SIDECAR_COUNTS.pick(random))
    version = f"{random.randint(1, 9)}.{random.randint(0, 40)}.{random.randint(0, 20)}"
    image = f"{_REGISTRIES.pick(random)}/{app}:{version}"
    containers = [_application(naming, app, image, alone=not sidecars)]
    containers += [_sidecar(name, image) for name, image in sidecars]
    annotations = {"checksum/config": naming.digest()[:40]}
    return {
        "metadata": {"annotations": annotations, "labels": labels},
        "spec": {
            "containers": containers,
            "dnsPolicy": "ClusterFirst",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "serviceAccount": account,
            "serviceAccountName": account,
            "terminationGracePeriodSeconds": 30,
        },
    }


def _application(naming: Naming, name: str, image: str, *, alone: bool) -> JsonObject:
    random = naming.random
    env: list[JsonObject] = [
        {"name": key, "value": random.choice(values)}
        for key, values in random.sample(SETTINGS, k=2 if alone else 1)
    ]
    if alone:
        secret = {"secretKeyRef": {"key": "password", "name": f"{name}-credentials"}}
        env.append({"name": "DATABASE_PASSWORD", "valueFrom": secret})
    memory = random.choice(("256Mi", "512Mi", "1Gi", "2Gi"))
    return {
        "env": env,
        "envFrom": [{"configMapRef": {"name": f"{name}-config"}}],
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "name": name,
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "100m", "memory": memory}},
        **_TERMINATION,
    }


def _sidecar(name: str, image: str) -> JsonObject:
    return {
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "name": name,
        "resources": {},
        **_TERMINATION,
    }


_TERMINATION = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def _admitted(spec: JsonObject, token: str) -> JsonObject:
    """The spec with what admission adds to every pod; it has no field owner."""
    mount = {"mountPath": TOKEN_PATH, "name": token, "readOnly": True}
    containers = [{**container, "volumeMounts": [mount]} for container in spec["containers"]]
    return {
        **spec,
        "containers": containers,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "tolerations": _TOLERATIONS,
        "volumes": [_token_volume(token)],
    }


def _token_volume(name: str) -> JsonObject:
    root = {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": root},
    ]
    return {"name": name, "projected": {"defaultMode": 420, "sources": sources}}


# pods -------------------------------------------------------------------------------------------


class PodMaker:
    """Makes the pods of one template.

    Args:
        naming: Tells them apart.
        managed_fields: Keeps their managedFields.
        pod_template: What they are made of, with all labels.
        owner: Their ownerReference.
        namespace: Where they are.
        age: How long ago the first of them was made, in seconds.
        phase: Running, Succeeded, or Failing: it crashes again and again.
    """

    def __init__(
        self,
        naming: Naming,
        managed_fields: ManagedFields,
        pod_template: JsonObject,
        owner: JsonObject,
        namespace: str,
        *,
        age: float,
        phase: str = "Running",
    ) -> None:
        self._naming = naming
        self._suffixes = naming.suffixes()
        self._managed_fields = managed_fields
        self._meta: JsonObject = pod_template["metadata"]
        self._template_spec: JsonObject = pod_template["spec"]
        token = f"kube-api-access-{naming.suffix()}"
        self._spec = _admitted(self._template_spec, token)
        self._owners = [owner]
        self._namespace = namespace
        self._phase = phase
        self._created = naming.ago(age)
        self._started = naming.ago(age - 2)
        self._running = {"running": {"startedAt": self._started}}
        self._conditions = self._make_conditions()
        self._image_ids = {c["image"]: _image_id(c["image"]) for c in self._spec["containers"]}
        self._entries: tuple[JsonObject, JsonObject] | None = None

    def make(self, node: Node, *, name: str = "", labels: JsonObject | None = None) -> JsonObject:
        """One pod.

        Args:
            node: Where it runs.
            name: Its name and host name; by default its owner's name with a suffix.
            labels: Labels in addition to those of the template.
        """
        naming, owner = self._naming, self._owners[0]["name"]
        meta: JsonObject = {"name": name}
        spec = self._spec
        if name:
            spec = {**spec, "hostname": name}
        else:
            meta = {"name": f"{owner}-{next(self._suffixes)}", "generateName": f"{owner}-"}
        meta |= {
            "namespace": self._namespace,
            "uid": naming.uid(),
            "creationTimestamp": self._created,
            **self._meta,
            "ownerReferences": self._owners,
        }
        if labels:
            meta["labels"] = {**self._meta["labels"], **labels}
        address = naming.address(POD_NETWORK)
        pod: JsonObject = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {**spec, "nodeName": node.name},
            "status": self._status(node, address),
        }
        meta["managedFields"] = self._managed(pod, address)
        return pod

    def _managed(self, pod: JsonObject, address: str) -> list[JsonObject]:
        """The managedFields of this pod: but for its address they are those of its siblings."""
        if self._entries is None:
            written = {**pod, "spec": self._template_spec}
            fields = self._managed_fields.fields(written, "metadata", "spec")
            status = self._managed_fields.fields(pod, "status")
            self._entries = (
                entry("kube-controller-manager", self._created, fields),
                entry("kubelet", self._started, status, subresource="status"),
            )
        creator, kubelet = self._entries
        address_tree: Tree = {f'k:{{"ip":"{address}"}}': {".": EMPTY, "f:ip": EMPTY}}
        status = {**kubelet["fieldsV1"]["f:status"], "f:podIPs": address_tree}
        return [creator, {**kubelet, "fieldsV1": {"f:status": status}}]

    # the status ---------------------------------------------------------------------------------

    def _make_conditions(self) -> list[JsonObject]:
        names = [container["name"] for container in self._spec["containers"]]
        conditions: list[JsonObject] = []
        for kind in CONDITIONS:
            condition: JsonObject = {"lastTransitionTime": self._started}
            if kind in ("Ready", "ContainersReady") and self._phase != "Running":
                condition["status"] = "False"
                condition["reason"] = "PodCompleted"
                if self._phase == "Failing":
                    condition["reason"] = "ContainersNotReady"
                    condition["message"] = f"containers with unready status: [{' '.join(names)}]"
            else:
                condition["status"] = "True"
            conditions.append({"type": kind, **condition})
        return conditions

    def _status(self, node: Node, address: str) -> JsonObject:
        status: JsonObject = {
            "conditions": self._conditions,
            "containerStatuses": [self._container(c) for c in self._spec["containers"]],
            "hostIP": node.address,
            "hostIPs": node.addresses,
            "phase": "Running" if self._phase == "Failing" else self._phase,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "qosClass": "Burstable",
            "startTime": self._created,
        }
        return status

    def _container(self, container: JsonObject) -> JsonObject:
        image, running = container["image"], self._phase == "Running"
        container_id = f"containerd://{self._naming.digest()}"
        state, last_state = self._states(container_id)
        return {
            "containerID": container_id,
            "image": image,
            "imageID": self._image_ids[image],
            "lastState": last_state,
            "name": container["name"],
            "ready": running,
            "restartCount": CRASHES if self._phase == "Failing" else 0,
            "started": running,
            "state": state,
        }

    def _states(self, container_id: str) -> tuple[JsonObject, JsonObject]:
        """The present state of a container, and the one before."""
        if self._phase == "Running":
            return self._running, NOTHING
        failing = self._phase == "Failing"
        ended = {
            "containerID": container_id,
            "exitCode": 1 if failing else 0,
            "finishedAt": self._naming.ago(CRASHED_SECONDS) if failing else self._started,
            "reason": "Error" if failing else "Completed",
            "startedAt": self._started,
        }
        terminated = {"terminated": ended}
        return (BACK_OFF, terminated) if failing else (terminated, NOTHING)


def _image_id(image: str) -> str:
    return f"{image.rpartition(':')[0]}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"


_TOLERATIONS = [
    {"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
]
