"""The columns of what Pods are scheduled by: devices, and groups of Pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, mapping, number, text
from fleetbus_query_api.tables.cells import at, count, truth
from fleetbus_query_api.tables.column import AGE, NAME, NONE, Column, column, since

_DEVICE_COUNTS: Final = (
    ("Total", "totalDevices"),
    ("Available", "availableDevices"),
    ("Allocated", "allocatedDevices"),
    ("Unavailable", "unavailableDevices"),
)
_NOT_COUNTED: Final = "-"


def _claim_state(claim: Tree) -> str:
    is_deleted = bool(look(claim, "metadata", "deletionTimestamp"))
    states = ["deleted"] if is_deleted else []
    if look(claim, "status", "allocation") is None:
        return ",".join(states) or "pending"
    states.append("allocated")
    if first_maps(claim, "status", "reservedFor"):
        states.append("reserved")
    return ",".join(states)


def _taint_age(rule: Tree) -> str:
    added = look(rule, "spec", "taint", "timeAdded")
    return since(added) if added else ""


def _pool_end(request: Tree) -> Tree:
    """The condition that ends a request for the state of pools; empty while it is pending."""
    for each in first_maps(request, "status", "conditions"):
        if each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
            return each
    return {}


def _pool_status(request: Tree) -> str:
    state = text(_pool_end(request), "type") or "Pending"
    pools, total = first_maps(request, "status", "pools"), number(request, "status", "poolCount")
    is_cut = state == "Complete" and total > len(pools)
    return f"{state} ({len(pools)}/{total} pools)" if is_cut else state


def _is_counted(request: Tree) -> bool:
    is_answered = isinstance(look(request, "status"), dict)
    return is_answered and text(_pool_end(request), "type") != "Failed"


def _devices(name: str, field: str) -> Column:
    def cell(request: Tree) -> str:
        if not _is_counted(request):
            return _NOT_COUNTED
        return str(sum(number(pool, field) for pool in first_maps(request, "status", "pools")))

    return column(name, cell)


def _pool_errors(request: Tree) -> str:
    if not _is_counted(request):
        return _NOT_COUNTED
    pools = first_maps(request, "status", "pools")
    return str(sum(pool.get("validationError") is not None for pool in pools))


def _completed(request: Tree) -> str:
    end = _pool_end(request)
    return since(end.get("lastTransitionTime")) if end.get("type") == "Complete" else NONE


def _policy(group: Tree) -> str:
    return "Basic" if look(group, "spec", "schedulingPolicy", "gang") is None else "Gang"


def _workload(group: Tree) -> str:
    reference = mapping(group, "spec", "workloadRef")
    return text(reference, "workloadName") if reference else NONE


def _group_state(group: Tree) -> str:
    conditions = {text(each, "type"): each for each in first_maps(group, "status", "conditions")}
    if "DisruptionTarget" in conditions:
        return text(conditions["DisruptionTarget"], "reason")
    scheduled = conditions.get("PodGroupInitiallyScheduled")
    if scheduled is None:
        return "Pending"
    return "Scheduled" if scheduled.get("status") == "True" else "Unschedulable"


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "scheduling.k8s.io/priorityclasses": (
        NAME,
        column("Value", count("value"), type="integer"),
        column("Global-Default", truth("globalDefault"), type="boolean"),
        AGE,
        column("PreemptionPolicy", at("preemptionPolicy", default="PreemptLowerPriority")),
    ),
    "scheduling.k8s.io/workloads": (NAME, AGE),
    "scheduling.k8s.io/podgroups": (
        NAME,
        column("Policy", _policy),
        column("Workload", _workload),
        column("Status", _group_state),
        AGE,
    ),
    "scheduling.k8s.io/compositepodgroups": (
        NAME,
        column("Policy", _policy),
        column("Workload", _workload),
        AGE,
    ),
    "resource.k8s.io/deviceclasses": (NAME, AGE),
    "resource.k8s.io/resourceclaims": (NAME, column("State", _claim_state), AGE),
    "resource.k8s.io/resourceclaimtemplates": (NAME, AGE),
    "resource.k8s.io/resourceslices": (
        NAME,
        column("Node", at("spec", "nodeName")),
        column("Driver", at("spec", "driver")),
        column("Pool", at("spec", "pool", "name")),
        AGE,
    ),
    "resource.k8s.io/devicetaintrules": (
        NAME,
        column("Key", at("spec", "taint", "key")),
        column("Value", at("spec", "taint", "value")),
        column("Effect", at("spec", "taint", "effect")),
        column("TimeAdded", _taint_age),
        AGE,
    ),
    "resource.k8s.io/resourcepoolstatusrequests": (
        NAME,
        column("Driver", at("spec", "driver")),
        *(_devices(name, field) for name, field in _DEVICE_COUNTS),
        column("Errors", _pool_errors),
        column("Pools", count("status", "poolCount"), type="integer"),
        column("Status", _pool_status),
        column("Completed", _completed),
    ),
}
