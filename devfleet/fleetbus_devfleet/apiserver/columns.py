"""What kubectl shows of the built-in types, column by column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetbus_devfleet.apiserver.resource import Column
from fleetbus_devfleet.apiserver.tree import listing, mapping

JsonObject = dict[str, Any]
NONE = "<none>"


@dataclass(frozen=True, slots=True)
class Row:
    """An object whose row is being printed."""

    obj: JsonObject
    age_of: Callable[[str | None], str]

    @property
    def spec(self) -> JsonObject:
        """The spec, perhaps empty."""
        return mapping(self.obj, "spec")

    @property
    def status(self) -> JsonObject:
        """The status, perhaps empty."""
        return mapping(self.obj, "status")

    @property
    def age(self) -> str:
        """The time since creation."""
        return self.age_of(self.obj["metadata"].get("creationTimestamp"))


@dataclass(frozen=True, slots=True)
class Printed:
    """The columns of a type behind Name, and how their cells are computed."""

    columns: tuple[Column, ...]
    cells: Callable[[Row], list[Any]]


def _columns(names: str, wide: str = "", integers: tuple[str, ...] = ()) -> tuple[Column, ...]:
    def column(name: str, priority: int) -> Column:
        return Column(name, type="integer" if name in integers else "string", priority=priority)

    shown = [column(name, 0) for name in names.split(", ")]
    return (*shown, *(column(name, 1) for name in wide.split(", ") if name))


def _template_cells(row: Row) -> list[str]:
    pod = mapping(row.spec, "template", "spec")
    containers = listing(pod, "containers")
    names = ",".join(container.get("name", "") for container in containers)
    images = ",".join(container.get("image", "") for container in containers)
    return [names, images, _selector(row.spec.get("selector"))]


def _selector(selector: JsonObject | None) -> str:
    if not selector:
        return NONE
    labels: JsonObject = selector.get("matchLabels", selector) or {}
    if any(not isinstance(value, str) for value in labels.values()):
        labels = {}
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or NONE


def _pod_reason(row: Row) -> str:
    status, meta = row.status, row.obj["metadata"]
    reason = status.get("reason") or status.get("phase") or "Unknown"
    for container in listing(status, "containerStatuses"):
        state = mapping(container, "state")
        held = state.get("waiting") or mapping(state, "terminated")
        reason = held.get("reason") or reason
    return "Terminating" if "deletionTimestamp" in meta else reason


def _pod(row: Row) -> list[Any]:
    statuses = listing(row.status, "containerStatuses")
    ready = sum(bool(status.get("ready")) for status in statuses)
    total = len(listing(row.spec, "containers"))
    restarts = sum(status.get("restartCount", 0) for status in statuses)
    return [
        f"{ready}/{total}",
        _pod_reason(row),
        restarts,
        row.age,
        row.status.get("podIP") or NONE,
        row.spec.get("nodeName") or NONE,
        row.status.get("nominatedNodeName") or NONE,
        NONE,
    ]


def _deployment(row: Row) -> list[Any]:
    status = row.status
    return [
        f"{status.get('readyReplicas', 0)}/{row.spec.get('replicas', 0)}",
        str(status.get("updatedReplicas", 0)),
        str(status.get("availableReplicas", 0)),
        row.age,
        *_template_cells(row),
    ]


def _replica_set(row: Row) -> list[Any]:
    status = row.status
    counts = [
        row.spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
    ]
    return [*counts, row.age, *_template_cells(row)]


def _stateful_set(row: Row) -> list[Any]:
    ready = f"{row.status.get('readyReplicas', 0)}/{row.spec.get('replicas', 0)}"
    return [ready, row.age, *_template_cells(row)[:2]]


def _daemon_set(row: Row) -> list[Any]:
    status = row.status
    counts = [
        status.get(name, 0)
        for name in (
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "updatedNumberScheduled",
            "numberAvailable",
        )
    ]
    pod = mapping(row.spec, "template", "spec")
    return [*counts, _selector(pod.get("nodeSelector")), row.age, *_template_cells(row)]


def _job(row: Row) -> list[Any]:
    status = row.status
    conditions = {c.get("type") for c in listing(status, "conditions") if c.get("status") == "True"}
    state = next(
        (name for name in ("Complete", "Failed", "Suspended") if name in conditions), "Running"
    )
    completions = row.spec.get("completions", 1)
    started = status.get("startTime")
    lasted = row.age_of(started) if started else ""
    return [
        state,
        f"{status.get('succeeded', 0)}/{completions}",
        lasted,
        row.age,
        *_template_cells(row),
    ]


def _cron_job(row: Row) -> list[Any]:
    last = row.status.get("lastScheduleTime")
    job = mapping(row.spec, "jobTemplate", "spec", "template")
    containers = listing(job, "spec", "containers")
    return [
        row.spec.get("schedule", ""),
        row.spec.get("timeZone") or NONE,
        str(row.spec.get("suspend", False)),
        len(listing(row.status, "active")),
        row.age_of(last) if last else NONE,
        row.age,
        ",".join(container.get("name", "") for container in containers),
    ]


def _node(row: Row) -> list[Any]:
    conditions = {c.get("type"): c.get("status") for c in listing(row.status, "conditions")}
    state = "Ready" if conditions.get("Ready") == "True" else "NotReady"
    if row.spec.get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    labels = mapping(row.obj["metadata"], "labels")
    roles = ",".join(
        name.removeprefix(prefix) for name in sorted(labels) if name.startswith(prefix)
    )
    version = mapping(row.status, "nodeInfo").get("kubeletVersion", "")
    return [state, roles or NONE, row.age, version]


def _service(row: Row) -> list[Any]:
    spec = row.spec
    ports = ",".join(
        f"{port.get('port')}{':' + str(port['nodePort']) if port.get('nodePort') else ''}"
        f"/{port.get('protocol', 'TCP')}"
        for port in listing(spec, "ports")
    )
    external = ",".join(listing(spec, "externalIPs")) or NONE
    address = spec.get("clusterIP") or NONE
    return [
        spec.get("type"),
        address,
        external,
        ports or NONE,
        row.age,
        _selector(spec.get("selector")),
    ]


def _event(row: Row) -> list[Any]:
    obj = row.obj
    involved = mapping(obj, "involvedObject")
    seen = obj.get("lastTimestamp") or obj.get("eventTime")
    return [
        row.age_of(seen),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        str(obj.get("message", "")).strip(),
    ]


def _ingress(row: Row) -> list[Any]:
    hosts = ",".join(rule["host"] for rule in listing(row.spec, "rules") if rule.get("host"))
    entries = listing(row.status, "loadBalancer", "ingress")
    addresses = ",".join(e.get("ip") or e.get("hostname") or "" for e in entries)
    ports = "80, 443" if row.spec.get("tls") else "80"
    return [row.spec.get("ingressClassName") or NONE, hosts or "*", addresses, ports, row.age]


def _volume_claim(row: Row) -> list[Any]:
    capacity = mapping(row.status, "capacity").get("storage", "")
    modes = ",".join(listing(row.status, "accessModes"))
    volume, storage = row.spec.get("volumeName", ""), row.spec.get("storageClassName", "")
    return [row.status.get("phase", ""), volume, capacity, modes, storage, row.age]


def _data_count(row: Row) -> int:
    return len(mapping(row.obj, "data")) + len(mapping(row.obj, "binaryData"))


_TEMPLATE = "Containers, Images, Selector"

BUILTIN_COLUMNS: dict[tuple[str, str], Printed] = {
    ("", "Namespace"): Printed(
        _columns("Status, Age"), lambda row: [row.status.get("phase", ""), row.age]
    ),
    ("", "Pod"): Printed(
        _columns(
            "Ready, Status, Restarts, Age",
            "IP, Node, Nominated Node, Readiness Gates",
            integers=("Restarts",),
        ),
        _pod,
    ),
    ("", "ConfigMap"): Printed(
        _columns("Data, Age", integers=("Data",)), lambda row: [_data_count(row), row.age]
    ),
    ("", "Secret"): Printed(
        _columns("Type, Data, Age", integers=("Data",)),
        lambda row: [row.obj.get("type"), _data_count(row), row.age],
    ),
    ("", "Service"): Printed(
        _columns("Type, Cluster-IP, External-IP, Port(s), Age", "Selector"), _service
    ),
    ("", "Node"): Printed(_columns("Status, Roles, Age, Version"), _node),
    ("", "Event"): Printed(_columns("Last Seen, Type, Reason, Object, Message"), _event),
    ("", "ServiceAccount"): Printed(
        _columns("Secrets, Age", integers=("Secrets",)),
        lambda row: [len(listing(row.obj, "secrets")), row.age],
    ),
    ("", "PersistentVolumeClaim"): Printed(
        _columns("Status, Volume, Capacity, Access Modes, StorageClass, Age"), _volume_claim
    ),
    ("apps", "Deployment"): Printed(
        _columns("Ready, Up-to-date, Available, Age", _TEMPLATE), _deployment
    ),
    ("apps", "ReplicaSet"): Printed(
        _columns(
            "Desired, Current, Ready, Age", _TEMPLATE, integers=("Desired", "Current", "Ready")
        ),
        _replica_set,
    ),
    ("apps", "StatefulSet"): Printed(_columns("Ready, Age", "Containers, Images"), _stateful_set),
    ("apps", "DaemonSet"): Printed(
        _columns(
            "Desired, Current, Ready, Up-to-date, Available, Node Selector, Age",
            _TEMPLATE,
            integers=("Desired", "Current", "Ready", "Up-to-date", "Available"),
        ),
        _daemon_set,
    ),
    ("batch", "Job"): Printed(_columns("Status, Completions, Duration, Age", _TEMPLATE), _job),
    ("batch", "CronJob"): Printed(
        _columns(
            "Schedule, Timezone, Suspend, Active, Last Schedule, Age",
            "Containers",
            integers=("Active",),
        ),
        _cron_job,
    ),
    ("networking.k8s.io", "Ingress"): Printed(
        _columns("Class, Hosts, Address, Ports, Age"), _ingress
    ),
    ("coordination.k8s.io", "Lease"): Printed(
        _columns("Holder, Age"), lambda row: [row.spec.get("holderIdentity", ""), row.age]
    ),
}
