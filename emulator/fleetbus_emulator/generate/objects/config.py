"""Configuration of applications: ConfigMaps, Secrets, Services, ServiceAccounts, Roles."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import orjson

from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.services.endpoints import subsets_of
from fleetbus_emulator.controllers.services.service import endpoint_of, port_entries, ports_of
from fleetbus_emulator.controllers.services.slices import entry_of, slice_labels
from fleetbus_emulator.controllers.workloads.rollout import LAST_APPLIED
from fleetbus_emulator.generate.objects.naming import SERVICE_NETWORK
from fleetbus_emulator.generate.objects.words import SETTINGS, Zipf
from fleetbus_emulator.generate.objects.workloads import (
    CONTROLLER_MANAGER,
    MANAGERS,
    Made,
    Place,
    owner_reference,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
LARGE_SHARE = 0.02
# Sizes of large values in KiB: dashboards, bundles, rule files.
LARGE = Zipf((20, 40, 80, 160, 320), 1.2)
SECRET_TYPES = Zipf(
    ("Opaque", "kubernetes.io/tls", "helm.sh/release.v1", "kubernetes.io/dockerconfigjson")
)
KEYS_OF_TYPE = {
    "Opaque": ("username", "password", "url"),
    "kubernetes.io/tls": ("tls.crt", "tls.key", "ca.crt"),
    "helm.sh/release.v1": ("release",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
}
LENGTH_OF_TYPE = {
    "Opaque": 24,
    "kubernetes.io/tls": 1_200,
    "helm.sh/release.v1": 12_000,
    "kubernetes.io/dockerconfigjson": 160,
}
LINE = 96


class Config:
    """Makes objects without a status.

    Args:
        naming: Tells objects apart.
        managed_fields: Keeps their managedFields.
        canary: A string in every Secret, for tests that look for leaks; empty for none.
    """

    def __init__(self, naming: Naming, managed_fields: ManagedFields, canary: str = "") -> None:
        self._naming = naming
        self._managed_fields = managed_fields
        self._canary = canary

    def _kept(self, gvr: str, obj: JsonObject, manager: str = "") -> Made:
        self._managed_fields.keep(obj, manager or MANAGERS.pick(self._naming.random))
        return gvr, obj

    def _object(
        self, api_version: str, kind: str, place: Place, name: str, content: JsonObject
    ) -> JsonObject:
        naming = self._naming
        meta = naming.metadata(name, place.namespace, naming.age(), place.labels)
        return {"apiVersion": api_version, "kind": kind, "metadata": meta, **content}

    # settings and secrets -----------------------------------------------------------------------

    def config_map(self, place: Place, name: str) -> Made:
        """Settings; a few are large files."""
        random = self._naming.random
        chosen = random.sample(SETTINGS, k=6)
        data = {key: random.choice(values) for key, values in chosen}
        if random.random() < LARGE_SHARE:
            data["dashboard.json"] = self.large_text(LARGE.pick(random))
        else:
            data["application.yaml"] = "\n".join(f"{k.lower()}: {v}" for k, v in data.items())
        return self._kept(
            "v1/configmaps", self._object("v1", "ConfigMap", place, name, {"data": data})
        )

    def large_text(self, kibibytes: int) -> str:
        """Lines of which no two are alike, so that compression works as on real files."""
        digest = self._naming.digest()
        count = kibibytes * 1024 // LINE
        return "\n".join(f'{{"panel": {n:6}, "expr": "rate({digest})"}}' for n in range(count))

    def secret(self, place: Place, name: str) -> Made:
        """A Secret of some type; kubectl apply left the values of some in an annotation."""
        naming = self._naming
        random = naming.random
        kind = SECRET_TYPES.pick(random)
        length = LENGTH_OF_TYPE[kind]
        data = {key: _encoded(random.randbytes(length)) for key in KEYS_OF_TYPE[kind]}
        if self._canary:
            data["canary"] = _encoded(self._canary.encode())
        secret = self._object("v1", "Secret", place, name, {"data": data, "type": kind})
        if kind == "Opaque" and random.random() < 0.3:  # noqa: PLR2004 - by kubectl apply
            applied = {"apiVersion": "v1", "kind": "Secret", "metadata": {}, "data": data}
            text = orjson.dumps(applied).decode() + "\n"
            secret["metadata"]["annotations"] = {LAST_APPLIED: text}
        return self._kept("v1/secrets", secret)

    # services -----------------------------------------------------------------------------------

    def service(
        self, place: Place, pods: Sequence[JsonObject], zones: Mapping[str, str]
    ) -> list[Made]:
        """A Service, and the Endpoints and the EndpointSlice with the addresses of its pods.

        Args:
            place: Where it is, and what its pods are called.
            pods: The pods.
            zones: The zones of their nodes.
        """
        address = self._naming.address(SERVICE_NETWORK)
        port = {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}
        spec = {
            "clusterIP": address,
            "clusterIPs": [address],
            "internalTrafficPolicy": "Cluster",
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "ports": [port],
            "selector": {"app.kubernetes.io/instance": place.app},
            "sessionAffinity": "None",
            "type": "ClusterIP",
        }
        content: JsonObject = {"spec": spec, "status": {"loadBalancer": {}}}
        service = self._object("v1", "Service", place, place.app, content)
        objects = [self._kept("v1/services", service)]
        refs = (Ref("", "pods", place.namespace, pod["metadata"]["name"]) for pod in pods)
        both = zip(refs, pods, strict=True)
        endpoints = [e for ref, pod in both if (e := endpoint_of(ref, pod, service))]
        if not endpoints:
            return objects
        ports = ports_of(service, pods[0])
        objects.append(
            self._endpoints(place, subsets_of([(port_entries(ports, bare=True), endpoints)]))
        )
        entries = [entry_of(endpoint, zones[endpoint.node]) for endpoint in endpoints]
        objects.append(self._endpoint_slice(service, entries, port_entries(ports, bare=False)))
        return objects

    def _endpoints(self, place: Place, subsets: list[JsonObject]) -> Made:
        obj = self._object("v1", "Endpoints", place, place.app, {"subsets": subsets})
        return self._kept("v1/endpoints", obj, CONTROLLER_MANAGER)

    def _endpoint_slice(
        self, service: JsonObject, entries: list[JsonObject], ports: list[JsonObject]
    ) -> Made:
        meta = service["metadata"]
        name = meta["name"]
        place = Place(name, meta["namespace"], labels=slice_labels(service))
        content: JsonObject = {"addressType": "IPv4", "endpoints": entries, "ports": ports}
        suffixed = f"{name}-{self._naming.suffix()}"
        obj = self._object("discovery.k8s.io/v1", "EndpointSlice", place, suffixed, content)
        obj["metadata"] |= {
            "generateName": f"{name}-",
            "ownerReferences": [owner_reference(service)],
        }
        return self._kept("discovery.k8s.io/v1/endpointslices", obj, CONTROLLER_MANAGER)

    # accounts and rights ------------------------------------------------------------------------

    def account(self, place: Place, name: str) -> Made:
        """A ServiceAccount."""
        return self._kept(
            "v1/serviceaccounts", self._object("v1", "ServiceAccount", place, name, {})
        )

    def rights(self, place: Place, name: str) -> list[Made]:
        """A Role, and the RoleBinding that gives it to the place's account."""
        group = "rbac.authorization.k8s.io"
        rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
        role = self._object(f"{group}/v1", "Role", place, name, {"rules": [rule]})
        subject = {
            "kind": "ServiceAccount",
            "name": place.account,
            "namespace": place.namespace,
        }
        content = {
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [subject],
        }
        binding = self._object(f"{group}/v1", "RoleBinding", place, name, content)
        return [
            self._kept(f"{group}/v1/roles", role),
            self._kept(f"{group}/v1/rolebindings", binding),
        ]

    def scaler(self, place: Place, size: int) -> Made:
        """A HorizontalPodAutoscaler."""
        metric = {
            "resource": {
                "name": "cpu",
                "target": {"averageUtilization": 80, "type": "Utilization"},
            },
            "type": "Resource",
        }
        spec = {
            "maxReplicas": size * 3,
            "metrics": [metric],
            "minReplicas": size,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": place.app},
        }
        status = {"currentMetrics": None, "currentReplicas": size, "desiredReplicas": size}
        content = {"spec": spec, "status": status}
        obj = self._object("autoscaling/v2", "HorizontalPodAutoscaler", place, place.app, content)
        return self._kept("autoscaling/v2/horizontalpodautoscalers", obj)


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()
