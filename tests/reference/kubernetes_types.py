"""Writes the table of Kubernetes' own types, which the query API explains them by.

    python tests/run.py reference.kubernetes_types

The types, their fields and what is said of them are those of kubernetes_asyncio, which generates
its models from the OpenAPI document of Kubernetes. Importing these models takes 1.5 s and 97 MB, so
the query API has a table of 100 KB instead. The models say nothing of a kind as a whole: `KINDS`
does, in our words.
"""

from __future__ import annotations

import inspect
import json
import lzma
import re
from pathlib import Path
from typing import Any, Final

from kubernetes_asyncio.client import models

TABLE: Final = (
    Path(__file__).parents[2]
    / "services/query-api/fleetbus_query_api/kube/openapi/kubernetes_types.json.xz"
)
_SAID: Final = re.compile(r"Gets the .*?\n\n(?P<text>.*?)\n\n\s*:return", re.DOTALL)
_REQUIRED: Final = re.compile(r"client_side_validation and \w+ is None:")

KINDS: Final = {
    "APIService": "A server for one version of an API group, which is not the API server itself.",
    "Binding": "The decision to run a pod on a node.",
    "CSIDriver": "A storage driver (CSI) that is installed in the cluster.",
    "CSINode": "The storage drivers (CSI) that are installed on a node.",
    "CSIStorageCapacity": "How much storage of a class a part of the cluster can provision.",
    "CertificateSigningRequest": "A request for a signed certificate, to be approved and issued.",
    "ClusterRole": "A set of rights that can be granted in one namespace or in the whole cluster.",
    "ClusterRoleBinding": "Grants a ClusterRole in the whole cluster to users, groups or accounts.",
    "ClusterTrustBundle": "Certificates of authorities that workloads may trust.",
    "ComponentStatus": "The health of a component of the control plane; deprecated.",
    "ConfigMap": "Configuration as pairs of keys and values, for pods to consume.",
    "ControllerRevision": "An immutable snapshot of state, kept by DaemonSets and StatefulSets.",
    "CronJob": "Creates a Job on a schedule.",
    "CustomResourceDefinition": "Defines a type of its own, which the API server then serves.",
    "DaemonSet": "Keeps one pod on each node, or on each of some nodes.",
    "Deployment": "Keeps equal pods running through ReplicaSets, and updates them step by step.",
    "DeviceClass": "A kind of device, as claims ask for it.",
    "EndpointSlice": "A part of the addresses that implement a Service.",
    "Endpoints": "The addresses that implement a Service; replaced by EndpointSlices.",
    "Event": "A report of something that happened to an object.",
    "FlowSchema": "Classifies requests to the API server by who sends them and what they ask for.",
    "HorizontalPodAutoscaler": "Sets how many replicas a workload has, by metrics.",
    "IPAddress": "An address that is allocated from the range of the Services.",
    "Ingress": "Rules by which HTTP requests from outside reach Services.",
    "IngressClass": "A kind of Ingress, and the controller that implements it.",
    "Job": "Runs pods until so many of them have succeeded.",
    "Lease": "A lock that its holder has to renew.",
    "LimitRange": "Bounds and defaults for the resources of each pod or container of a namespace.",
    "MutatingAdmissionPolicy": "Changes objects as they are written, by expressions.",
    "MutatingAdmissionPolicyBinding": "Applies a MutatingAdmissionPolicy to some objects.",
    "MutatingWebhookConfiguration": "Webhooks that change objects as they are written.",
    "Namespace": "A scope for names, rights and quotas.",
    "NetworkPolicy": "The traffic that is allowed from and to a set of pods.",
    "Node": "A machine that runs pods.",
    "PersistentVolume": "A piece of storage of the cluster.",
    "PersistentVolumeClaim": "A request for storage, bound to a PersistentVolume.",
    "Pod": "A group of containers that run together on one node.",
    "PodDisruptionBudget": "How many pods of a set may be evicted at a time.",
    "PodTemplate": "A template for copies of a pod.",
    "PriorityClass": "A priority of pods by name.",
    "PriorityLevelConfiguration": "How many requests of a priority the API server handles at once.",
    "ReplicaSet": "Keeps so many equal pods running; mostly one of a Deployment.",
    "ReplicationController": "Keeps so many equal pods running; replaced by ReplicaSet.",
    "ResourceClaim": "A request for devices, for a pod to use.",
    "ResourceClaimTemplate": "A template for a ResourceClaim of each pod.",
    "ResourceQuota": "Bounds on what all objects of a namespace use together.",
    "ResourceSlice": "Devices of a driver, on a node or for several nodes.",
    "Role": "A set of rights that can be granted in its namespace.",
    "RoleBinding": "Grants a Role or ClusterRole in its namespace to users, groups or accounts.",
    "RuntimeClass": "A container runtime that pods may choose.",
    "Secret": "Confidential data, such as passwords and keys.",
    "Service": "A stable address and name for a set of pods.",
    "ServiceAccount": "An identity for the processes of pods.",
    "ServiceCIDR": "A range of addresses for Services.",
    "StatefulSet": "Keeps pods with stable names and storage running, in order.",
    "StorageClass": "A kind of storage, and how volumes of it are provisioned.",
    "ValidatingAdmissionPolicy": "Refuses objects as they are written, by expressions.",
    "ValidatingAdmissionPolicyBinding": "Applies a ValidatingAdmissionPolicy to some objects.",
    "ValidatingWebhookConfiguration": "Webhooks that refuse objects as they are written.",
    "VolumeAttachment": "A volume that is to be attached to a node, or detached from it.",
    "VolumeAttributesClass": "Attributes that a volume can be changed to while it is in use.",
}


def read_types() -> dict[str, Any]:
    """The table: `fields` of each model as (type, description, is it required), and `kinds`."""
    found = {name: getattr(models, name) for name in dir(models)}
    fields = {
        name: _fields(model) for name, model in found.items() if hasattr(model, "openapi_types")
    }
    return {"fields": fields, "kinds": KINDS}


def _fields(model: Any) -> dict[str, tuple[str, str, bool]]:
    """The fields of a model by their names in JSON."""
    found: dict[str, tuple[str, str, bool]] = {}
    for attribute, kind in model.openapi_types.items():
        member = getattr(model, attribute)
        said = _SAID.match(member.__doc__ or "")
        text = re.sub(r"\s*# noqa: E501", "", said["text"]).strip() if said else ""
        is_required = _REQUIRED.search(inspect.getsource(member.fset)) is not None
        found[model.attribute_map[attribute]] = (kind, text, is_required)
    return found


def main() -> None:
    """Write the table."""
    text = json.dumps(read_types(), separators=(",", ":"), sort_keys=True)
    TABLE.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()
