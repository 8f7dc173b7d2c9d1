"""The columns of namespaces, nodes, configuration, events and quotas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from fleetbus.kube.json_fields import MOST_READ, Tree, first_maps, look, mapping, number, text
from fleetbus_query_api.tables.cells import at, filled, length, size
from fleetbus_query_api.tables.column import (
    AGE,
    NAME,
    NONE,
    UNKNOWN,
    Cell,
    Column,
    column,
    name_of,
    since,
    wide,
)

_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
_ROLE_LABEL: Final = "kubernetes.io/role"


def _node_status(node: Tree) -> str:
    conditions = first_maps(node, "status", "conditions")
    states = [c.get("status") for c in conditions if c.get("type") == "Ready"]
    words = ["Ready" if states[-1] == "True" else "NotReady"] if states else ["Unknown"]
    if look(node, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Tree) -> str:
    labels = mapping(node, "metadata", "labels")
    roles = {name.removeprefix(_ROLE_PREFIX) for name in labels if name.startswith(_ROLE_PREFIX)}
    roles.add(text(labels, _ROLE_LABEL))
    return ",".join(sorted(roles - {""})) or NONE


def _address(kind: str) -> Callable[[Tree], str]:
    def cell(node: Tree) -> str:
        addresses = first_maps(node, "status", "addresses")
        return next((text(a, "address") for a in addresses if a.get("type") == kind), NONE)

    return cell


def _info(field: str) -> Callable[[Tree], str]:
    return filled("status", "nodeInfo", field, default=UNKNOWN)


def _kernel(node: Tree) -> str:
    architecture = text(node, "status", "nodeInfo", "architecture")
    return _info("kernelVersion")(node) + (f" ({architecture})" if architecture else "")


def _data(config_map: Tree) -> int:
    return length(config_map.get("data")) + length(config_map.get("binaryData"))


def _first_seen(event: Tree) -> str:
    return since(look(event, "firstTimestamp") or look(event, "eventTime"))


def _last_seen(event: Tree) -> str:
    if mapping(event, "series"):
        return since(look(event, "series", "lastObservedTime"))
    last = look(event, "lastTimestamp")
    return since(last) if last else _first_seen(event)


def _object(event: Tree) -> str:
    kind = text(event, "involvedObject", "kind").lower()
    name = text(event, "involvedObject", "name")
    return f"{kind}/{name}" if name else kind


def _source(event: Tree) -> str:
    component = text(event, "source", "component") or text(event, "reportingComponent")
    host = text(event, "source", "host") or text(event, "reportingInstance")
    return f"{component}, {host}" if host else component


def _times(event: Tree) -> int:
    if mapping(event, "series"):
        return number(event, "series", "count")
    return number(event, "count") or 1


def _quota(is_limit: bool) -> Callable[[Tree], str]:
    def cell(quota: Tree) -> str:
        hard = mapping(quota, "status", "hard")
        return ", ".join(
            f"{name}: {text(quota, 'status', 'used', name) or '0'}/{text(hard, name)}"
            for name in sorted(hard)[:MOST_READ]
            if name.startswith("limits.") == is_limit
        )

    return cell


def _health(status: Tree) -> Tree:
    conditions = first_maps(status, "conditions")
    empty: Tree = {}
    return next((c for c in conditions if c.get("type") == "Healthy"), empty)


def _component_status(status: Tree) -> str:
    health = _health(status)
    if not health:
        return "Unknown"
    return "Healthy" if health.get("status") == "True" else "Unhealthy"


_EVENT: Final = (
    column("Last Seen", _last_seen),
    column("Type", at("type")),
    column("Reason", at("reason")),
    column("Object", _object),
    wide("Subobject", at("involvedObject", "fieldPath")),
    wide("Source", _source),
    column("Message", lambda event: text(event, "message").strip()),
    wide("First Seen", _first_seen),
    wide("Count", _times),
    Column("Name", name_of, format="name", description=NAME.description, priority=1),
)
_CORE_NAMES: Final = {
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedSource": "source",
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
}
"""The fields of an Event of events.k8s.io, and what the core group calls them."""


def _in_own_group(each: Column) -> Column:
    """The same column for Events of events.k8s.io, which an API server stores as core ones."""

    def cell(event: Tree) -> Cell:
        return each.cell({_CORE_NAMES.get(name, name): value for name, value in event.items()})

    return replace(each, cell=cell)


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "core/namespaces": (NAME, column("Status", at("status", "phase")), AGE),
    "core/nodes": (
        NAME,
        column("Status", _node_status),
        column("Roles", _roles),
        AGE,
        column("Version", at("status", "nodeInfo", "kubeletVersion")),
        wide("Internal-IP", _address("InternalIP")),
        wide("External-IP", _address("ExternalIP")),
        wide("OS-Image", _info("osImage")),
        wide("Kernel-Version", _kernel),
        wide("Container-Runtime", _info("containerRuntimeVersion")),
    ),
    "core/componentstatuses": (
        NAME,
        column("Status", _component_status),
        column("Message", lambda status: text(_health(status), "message")),
        column("Error", lambda status: text(_health(status), "error")),
    ),
    "core/configmaps": (NAME, column("Data", _data), AGE),
    "core/secrets": (NAME, column("Type", at("type")), column("Data", size("data")), AGE),
    "core/serviceaccounts": (NAME, AGE),
    "core/events": _EVENT,
    "events.k8s.io/events": tuple(map(_in_own_group, _EVENT)),
    "core/resourcequotas": (
        NAME,
        column("Request", _quota(is_limit=False)),
        column("Limit", _quota(is_limit=True)),
        AGE,
    ),
    "coordination.k8s.io/leases": (NAME, column("Holder", at("spec", "holderIdentity")), AGE),
    "coordination.k8s.io/leasecandidates": (
        NAME,
        column("LeaseName", at("spec", "leaseName")),
        column("BinaryVersion", at("spec", "binaryVersion")),
        column("EmulationVersion", at("spec", "emulationVersion")),
        AGE,
    ),
    "node.k8s.io/runtimeclasses": (NAME, column("Handler", at("handler")), AGE),
}
