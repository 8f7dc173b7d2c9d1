"""The defaults of the built-in types, as far as clients notice them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Protocol

from fleetbus_emulator.apiserver.auth import roles
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types import services

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from fleetbus_emulator.apiserver.types.resource import ResourceType

JsonObject = dict[str, Any]
TOLERATION_SECONDS = 300
CPU_UTILIZATION = 80


class Allocator(Protocol):
    """The addresses and ports that a cluster allocates on create."""

    random: Random

    def new_uid(self) -> str:
        """A fresh uid."""
        ...


def _set(target: JsonObject, **values: Any) -> None:
    for name, value in values.items():
        if target.get(name) is None:
            target[name] = value


def apply_defaults(rtype: ResourceType, obj: JsonObject) -> None:
    """Fill in what a write left out; the same on create and update."""
    default = _DEFAULTS.get((rtype.group, rtype.kind))
    if default is not None:
        default(obj)


def apply_creation_defaults(state: Allocator, rtype: ResourceType, obj: JsonObject) -> None:
    """Fill in what is decided once: initial status, allocated addresses, selectors."""
    default = _CREATION_DEFAULTS.get((rtype.group, rtype.kind))
    if default is not None:
        default(state, obj)


def _containers(spec: JsonObject) -> None:
    for container in (listing(spec, "initContainers")) + (listing(spec, "containers")):
        image = str(container.get("image") or "")
        floating = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        _set(
            container,
            imagePullPolicy="Always" if floating and "@" not in image else "IfNotPresent",
            resources={},
            terminationMessagePath="/dev/termination-log",
            terminationMessagePolicy="File",
        )
        for port in listing(container, "ports"):
            _set(port, protocol="TCP")
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if container.get(probe):
                _set(
                    container[probe],
                    failureThreshold=3,
                    periodSeconds=10,
                    successThreshold=1,
                    timeoutSeconds=1,
                )


def _pod_spec(spec: JsonObject) -> None:
    _set(
        spec,
        dnsPolicy="ClusterFirst",
        restartPolicy="Always",
        schedulerName="default-scheduler",
        securityContext={},
        terminationGracePeriodSeconds=30,
    )
    if spec.get("serviceAccountName"):
        _set(spec, serviceAccount=spec["serviceAccountName"])
    _containers(spec)


def _template(spec: JsonObject) -> None:
    template = spec.get("template")
    if isinstance(template, dict):
        _pod_spec(template.setdefault("spec", {}))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _spec(obj: JsonObject) -> JsonObject:
    spec: JsonObject = mapping(obj, "spec")
    obj["spec"] = spec
    return spec


def _pod(obj: JsonObject) -> None:
    spec = _spec(obj)
    _set(spec, enableServiceLinks=True)
    _pod_spec(spec)


def _deployment(obj: JsonObject) -> None:
    spec = _spec(obj)
    _set(spec, replicas=1, progressDeadlineSeconds=600, revisionHistoryLimit=10, strategy={})
    _set(spec["strategy"], type="RollingUpdate")
    if spec["strategy"]["type"] == "RollingUpdate":
        _set(spec["strategy"], rollingUpdate={})
        _set(spec["strategy"]["rollingUpdate"], maxUnavailable="25%", maxSurge="25%")
    _template(spec)


def _replication_controller(obj: JsonObject) -> None:
    spec = _spec(obj)
    labels = mapping(spec, "template", "metadata", "labels")
    if labels:
        _set(spec, selector=dict(labels))
        _set(obj["metadata"], labels=dict(labels))
    _replica_set(obj)


def _replica_set(obj: JsonObject) -> None:
    spec = _spec(obj)
    _set(spec, replicas=1)
    _template(spec)


def _stateful_set(obj: JsonObject) -> None:
    spec = _spec(obj)
    _set(
        spec,
        replicas=1,
        podManagementPolicy="OrderedReady",
        revisionHistoryLimit=10,
        updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    )
    _template(spec)


def _daemon_set(obj: JsonObject) -> None:
    spec = _spec(obj)
    rolling = {"maxSurge": 0, "maxUnavailable": 1}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    _set(spec, revisionHistoryLimit=10, updateStrategy=strategy)
    _template(spec)


def _job_spec(spec: JsonObject) -> None:
    if spec.get("completions") is None and spec.get("parallelism") is None:
        _set(spec, completions=1)
    _set(
        spec,
        parallelism=1,
        backoffLimit=6,
        completionMode="NonIndexed",
        suspend=False,
        manualSelector=False,
        podReplacementPolicy="TerminatingOrFailed",
    )
    _template(spec)


def _job(obj: JsonObject) -> None:
    _job_spec(_spec(obj))


def _cron_job(obj: JsonObject) -> None:
    spec = _spec(obj)
    _set(
        spec,
        concurrencyPolicy="Allow",
        suspend=False,
        successfulJobsHistoryLimit=3,
        failedJobsHistoryLimit=1,
    )
    # Kubernetes defaults a Job's own fields when the Job is created, but its pods' here.
    _template(mapping(spec, "jobTemplate", "spec"))


def _secret(obj: JsonObject) -> None:
    _set(obj, type="Opaque")
    plain: JsonObject = obj.pop("stringData", None) or {}
    if plain:
        encoded = {k: base64.b64encode(str(v).encode()).decode() for k, v in plain.items()}
        obj["data"] = {**(mapping(obj, "data")), **encoded}


def _namespace(obj: JsonObject) -> None:
    labels = obj["metadata"].setdefault("labels", {})
    if obj["metadata"].get("name"):
        labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]


def _event(obj: JsonObject) -> None:
    # Go never leaves these out: times that are structs, and strings without omitempty.
    for name in ("firstTimestamp", "lastTimestamp", "eventTime"):
        obj.setdefault(name, None)
    obj.setdefault("source", {})
    _set(obj, reportingComponent="", reportingInstance="")


def _network_policy(obj: JsonObject) -> None:
    spec = _spec(obj)
    kinds = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    _set(spec, policyTypes=kinds)


def _volume_claim(obj: JsonObject) -> None:
    _set(_spec(obj), volumeMode="Filesystem")


def _volume(obj: JsonObject) -> None:
    _set(_spec(obj), persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")


def _endpoints(obj: JsonObject) -> None:
    for subset in listing(obj, "subsets"):
        for port in listing(subset, "ports"):
            _set(port, protocol="TCP")


def _ports_of_slice(obj: JsonObject) -> None:
    for port in listing(obj, "ports"):
        _set(port, name="", protocol="TCP")


def _limit_range(obj: JsonObject) -> None:
    """A container's bounds imply its defaults: max the limit, the limit the request."""
    for item in listing(obj, "spec", "limits"):
        if item.get("type") != "Container":
            continue
        limits = {**mapping(item, "max"), **mapping(item, "default")}
        requests = {**mapping(item, "min"), **limits, **mapping(item, "defaultRequest")}
        if limits:
            item["default"] = limits
        if requests:
            item["defaultRequest"] = requests


def _autoscaler(obj: JsonObject) -> None:
    target = {"type": "Utilization", "averageUtilization": CPU_UTILIZATION}
    cpu = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    _set(_spec(obj), minReplicas=1, metrics=[cpu])


def _priority_class(obj: JsonObject) -> None:
    _set(obj, preemptionPolicy="PreemptLowerPriority")


def _storage_class(obj: JsonObject) -> None:
    _set(obj, reclaimPolicy="Delete", volumeBindingMode="Immediate")


def _definition(obj: JsonObject) -> None:
    spec = _spec(obj)
    names: JsonObject = mapping(spec, "names")
    kind = names.get("kind") or ""
    if kind and not names.get("singular"):
        names["singular"] = kind.lower()
    if kind and not names.get("listKind"):
        names["listKind"] = f"{kind}List"
    order = ("plural", "singular", "shortNames", "kind", "listKind", "categories")
    spec["names"] = {name: names[name] for name in order if name in names}
    _set(spec, conversion={"strategy": "None"})


_DEFAULTS: dict[tuple[str, str], Callable[[JsonObject], None]] = {
    ("", "Pod"): _pod,
    ("", "Service"): services.apply_defaults,
    ("", "Secret"): _secret,
    ("", "Namespace"): _namespace,
    ("", "Event"): _event,
    ("events.k8s.io", "Event"): _event,
    ("", "PersistentVolumeClaim"): _volume_claim,
    ("", "ReplicationController"): _replication_controller,
    ("", "PersistentVolume"): _volume,
    ("", "Endpoints"): _endpoints,
    ("", "LimitRange"): _limit_range,
    ("discovery.k8s.io", "EndpointSlice"): _ports_of_slice,
    ("autoscaling", "HorizontalPodAutoscaler"): _autoscaler,
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _replica_set,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("batch", "Job"): _job,
    ("batch", "CronJob"): _cron_job,
    ("networking.k8s.io", "NetworkPolicy"): _network_policy,
    ("storage.k8s.io", "StorageClass"): _storage_class,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
    (roles.GROUP, "RoleBinding"): roles.binding_defaults,
    (roles.GROUP, "ClusterRoleBinding"): roles.binding_defaults,
}


# decided on creation ----------------------------------------------------------------------------


def _new_namespace(_state: Allocator, obj: JsonObject) -> None:
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def _new_pod(_state: Allocator, obj: JsonObject) -> None:
    spec = obj["spec"]
    _set(spec, priority=0, preemptionPolicy="PreemptLowerPriority")
    effects = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    automatic = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": TOLERATION_SECONDS,
        }
        for key in effects
    ]
    present = listing(spec, "tolerations")
    keys = {toleration.get("key") for toleration in present}
    spec["tolerations"] = present + [t for t in automatic if t["key"] not in keys]
    obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def _qos_class(spec: JsonObject) -> str:
    resources = [mapping(container, "resources") for container in listing(spec, "containers")]
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= set(mapping(r, "limits"))
        and (r.get("requests") or r["limits"]) == r["limits"]
        for r in resources
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _new_service(_state: Allocator, obj: JsonObject) -> None:
    obj["status"] = {"loadBalancer": {}}


def _new_job(state: Allocator, obj: JsonObject) -> None:
    spec = obj["spec"]
    obj["status"] = {}
    if spec.get("manualSelector"):
        return
    # The selector needs the Job's uid, which is therefore chosen here.
    uid = state.new_uid()
    template: JsonObject = spec.setdefault("template", {})
    labels: JsonObject = template.setdefault("metadata", {}).setdefault("labels", {})
    names = {"controller-uid": uid, "job-name": obj["metadata"].get("name", "")}
    labels.update(names)
    labels.update({f"batch.kubernetes.io/{name}": value for name, value in names.items()})
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    obj["metadata"]["uid"] = uid


def _new_definition(_state: Allocator, obj: JsonObject) -> None:
    versions = listing(obj, "spec", "versions")
    stored = [v["name"] for v in versions if v.get("storage") and v.get("name")][:1]
    # Nobody has accepted the names yet; Go shows an absent list as null.
    names = {"plural": "", "kind": ""}
    obj["status"] = {"conditions": None, "acceptedNames": names, "storedVersions": stored}


def _new_workload(_state: Allocator, obj: JsonObject) -> None:
    obj["status"] = {}


def _new_volume(_state: Allocator, obj: JsonObject) -> None:
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def _new_claim(_state: Allocator, obj: JsonObject) -> None:
    obj["status"] = {"phase": "Pending"}


_CREATION_DEFAULTS: dict[tuple[str, str], Callable[[Allocator, JsonObject], None]] = {
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _new_definition,
    ("", "Namespace"): _new_namespace,
    ("", "Pod"): _new_pod,
    ("", "Service"): _new_service,
    ("", "PersistentVolume"): _new_volume,
    ("", "PersistentVolumeClaim"): _new_claim,
    ("apps", "Deployment"): _new_workload,
    ("apps", "ReplicaSet"): _new_workload,
    ("apps", "StatefulSet"): _new_workload,
    ("apps", "DaemonSet"): _new_workload,
    ("batch", "Job"): _new_job,
    ("batch", "CronJob"): _new_workload,
}
