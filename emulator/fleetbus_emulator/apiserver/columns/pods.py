"""The row of a pod: its containers, and one word for its state."""

from __future__ import annotations

from typing import Any

from fleetbus_emulator.apiserver.columns.printed import NONE, Printed, Row, labels, printed
from fleetbus_emulator.apiserver.json_tree import listing, mapping

JsonObject = dict[str, Any]
FINISHED = ("Succeeded", "Failed")


def template_cells(containers: list[JsonObject]) -> list[str]:
    """Names and images of containers."""
    names = ",".join(container.get("name", "") for container in containers)
    return [names, ",".join(container.get("image", "") for container in containers)]


def _has(row: Row, condition: str) -> bool:
    conditions = listing(row.status, "conditions")
    return any(c.get("type") == condition and c.get("status") == "True" for c in conditions)


def _ended(terminated: JsonObject) -> str:
    if terminated.get("reason"):
        return terminated["reason"]
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_sidecar(row: Row, name: str) -> bool:
    containers = listing(row.spec, "initContainers")
    return any(c.get("name") == name and c.get("restartPolicy") == "Always" for c in containers)


def _initializing(row: Row) -> str | None:
    """The status of a pod that is not initialized yet; None if it is."""
    statuses = listing(row.status, "initContainerStatuses")
    for index, status in enumerate(statuses):
        state = mapping(status, "state")
        terminated, waiting = state.get("terminated"), mapping(state, "waiting").get("reason")
        if terminated and not terminated.get("exitCode"):
            continue
        if _is_sidecar(row, status.get("name", "")) and status.get("started"):
            continue
        if terminated:
            return f"Init:{_ended(terminated)}"
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{len(listing(row.spec, 'initContainers'))}"
    return None


def _running_reason(row: Row, reason: str) -> str:
    """The state of the first unhealthy container, else that of the pod."""
    running = False
    for status in reversed(listing(row.status, "containerStatuses")):
        state = mapping(status, "state")
        waiting, terminated = mapping(state, "waiting").get("reason"), state.get("terminated")
        if waiting:
            reason = waiting
        elif terminated:
            reason = _ended(terminated)
        elif status.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        return "Running" if _has(row, "Ready") else "NotReady"
    return reason


def state(row: Row) -> str:
    """The word in the column Status."""
    status = row.status
    reason = status.get("reason") or status.get("phase") or ""
    if any(c.get("reason") == "SchedulingGated" for c in listing(status, "conditions")):
        reason = "SchedulingGated"
    initializing = _initializing(row)
    if initializing is None or _has(row, "Initialized"):
        reason = _running_reason(row, reason)
    else:
        reason = initializing
    if row.deleting and status.get("reason") == "NodeLost":
        return "Unknown"
    return "Terminating" if row.deleting and status.get("phase") not in FINISHED else reason


def _restarts(row: Row) -> str:
    statuses = listing(row.status, "containerStatuses")
    statuses = statuses or listing(row.status, "initContainerStatuses")
    count = sum(status.get("restartCount", 0) for status in statuses)
    ends = [mapping(status, "lastState", "terminated").get("finishedAt") for status in statuses]
    latest = max((end for end in ends if end), default=None)
    return f"{count} ({row.since(latest)} ago)" if count and latest else str(count)


def _ready(row: Row) -> str:
    statuses = listing(row.status, "containerStatuses")
    sidecars = [
        status
        for status in listing(row.status, "initContainerStatuses")
        if _is_sidecar(row, status.get("name", ""))
    ]
    ready = sum(
        bool(status.get("ready")) and "running" in mapping(status, "state")
        for status in [*statuses, *sidecars]
    )
    containers = len(listing(row.spec, "containers"))
    inits = listing(row.spec, "initContainers")
    return f"{ready}/{containers + sum(c.get('restartPolicy') == 'Always' for c in inits)}"


def _gates(row: Row) -> str:
    gates = [gate.get("conditionType", "") for gate in listing(row.spec, "readinessGates")]
    return f"{sum(_has(row, gate) for gate in gates)}/{len(gates)}" if gates else NONE


def _pod(row: Row) -> list[Any]:
    addresses = listing(row.status, "podIPs")
    return [
        _ready(row),
        state(row),
        _restarts(row),
        row.age,
        (addresses[0].get("ip") if addresses else row.status.get("podIP")) or NONE,
        row.spec.get("nodeName") or NONE,
        row.status.get("nominatedNodeName") or NONE,
        _gates(row),
    ]


def _pod_template(row: Row) -> list[Any]:
    template = mapping(row.obj, "template")
    containers = listing(template, "spec", "containers")
    return [*template_cells(containers), labels(mapping(template, "metadata", "labels"))]


COLUMNS: dict[tuple[str, str], Printed] = {
    ("", "Pod"): printed(
        "Ready, Status, Restarts, Age", _pod, wide="IP, Node, Nominated Node, Readiness Gates"
    ),
    ("", "PodTemplate"): printed("Containers, Images, Pod Labels", _pod_template),
}
