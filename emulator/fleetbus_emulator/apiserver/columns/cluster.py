"""The rows of namespaces, nodes, configuration, events and classes."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns.ages import UNKNOWN
from fleetbus_emulator.apiserver.columns.printed import NAME, NONE, Printed, Row, printed
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.apiserver.types.resource import Column

ROLE_PREFIX, ROLE_LABEL = "node-role.kubernetes.io/", "kubernetes.io/role"
LIMITS = "limits."


def _node_state(row: Row) -> str:
    conditions = {c.get("type"): c.get("status") for c in listing(row.status, "conditions")}
    state = "Unknown"
    if "Ready" in conditions:
        state = "Ready" if conditions["Ready"] == "True" else "NotReady"
    return f"{state},SchedulingDisabled" if row.spec.get("unschedulable") else state


def _node(row: Row) -> list[Any]:
    labels = mapping(row.meta, "labels")
    roles = {n.removeprefix(ROLE_PREFIX) for n in labels if n.startswith(ROLE_PREFIX)}
    roles |= {labels.get(ROLE_LABEL, "")}
    addresses = {
        a.get("type"): a.get("address") for a in reversed(listing(row.status, "addresses"))
    }
    info = mapping(row.status, "nodeInfo")
    return [
        _node_state(row),
        ",".join(sorted(roles - {""})) or NONE,
        row.age,
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _data_count(row: Row) -> int:
    return len(mapping(row.obj, "data")) + len(mapping(row.obj, "binaryData"))


def _source(row: Row) -> str:
    source = mapping(row.obj, "source")
    component = source.get("component") or row.obj.get("reportingComponent") or ""
    host = source.get("host") or row.obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def _event(row: Row) -> list[Any]:
    obj, series = row.obj, mapping(row.obj, "series")
    first = row.since(obj.get("firstTimestamp") or obj.get("eventTime"))
    last = row.since(obj["lastTimestamp"]) if obj.get("lastTimestamp") else first
    if series:
        last = row.since(series.get("lastObservedTime"))
    involved = mapping(obj, "involvedObject")
    named = [str(involved.get("kind", "")).lower(), involved.get("name") or ""]
    return [
        last,
        obj.get("type", ""),
        obj.get("reason", ""),
        "/".join(word for word in named if word),
        involved.get("fieldPath", ""),
        _source(row),
        str(obj.get("message", "")).strip(),
        first,
        series.get("count") or obj.get("count") or 1,
        row.name,
    ]


_EVENT_COLUMNS = (
    *(Column(name) for name in ("Last Seen", "Type", "Reason", "Object")),
    *(Column(name, priority=1) for name in ("Subobject", "Source")),
    Column("Message"),
    *(Column(name, priority=1) for name in ("First Seen", "Count")),
    Column("Name", format="name", priority=1, description=NAME.description),
)


def _quota(row: Row) -> list[Any]:
    hard, used = mapping(row.status, "hard"), mapping(row.status, "used")
    texts = {name: f"{name}: {used.get(name, 0)}/{hard[name]}" for name in sorted(hard)}
    requests = [text for name, text in texts.items() if not name.startswith(LIMITS)]
    limits = [text for name, text in texts.items() if name.startswith(LIMITS)]
    return [", ".join(requests), ", ".join(limits), row.age]


def _priority(row: Row) -> list[Any]:
    obj = row.obj
    policy = obj.get("preemptionPolicy", "PreemptLowerPriority")
    return [obj.get("value", 0), bool(obj.get("globalDefault")), row.age, policy]


COLUMNS: dict[tuple[str, str], Printed] = {
    ("", "Namespace"): printed("Status, Age", lambda row: [row.status.get("phase", ""), row.age]),
    ("", "Node"): printed(
        "Status, Roles, Age, Version",
        _node,
        wide="Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime",
    ),
    ("", "ConfigMap"): printed("Data, Age", lambda row: [_data_count(row), row.age]),
    ("", "Secret"): printed(
        "Type, Data, Age",
        lambda row: [row.obj.get("type", ""), len(mapping(row.obj, "data")), row.age],
    ),
    ("", "ServiceAccount"): printed(
        "Secrets, Age", lambda row: [len(listing(row.obj, "secrets")), row.age]
    ),
    ("", "Event"): Printed(_EVENT_COLUMNS, _event),
    ("", "ResourceQuota"): printed("Request, Limit, Age", _quota),
    ("coordination.k8s.io", "Lease"): printed(
        "Holder, Age", lambda row: [row.spec.get("holderIdentity", ""), row.age]
    ),
    ("scheduling.k8s.io", "PriorityClass"): printed(
        "Value, Global-Default, Age, PreemptionPolicy",
        _priority,
        integers="Value",
        booleans="Global-Default",
    ),
    ("node.k8s.io", "RuntimeClass"): printed(
        "Handler, Age", lambda row: [row.obj.get("handler", ""), row.age]
    ),
}
