"""The columns of Pods: their containers, and one word for their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from fleetbus.kube.json_fields import Tree, first_maps, look, number, text
from fleetbus.process.human_time import parse_time
from fleetbus_query_api.tables.cells import filled, is_true, labels, template_columns
from fleetbus_query_api.tables.column import AGE, NAME, NONE, Column, column, since, wide

_FINAL: Final = frozenset({"Succeeded", "Failed"})


def ready(pod: Tree) -> str:
    """Render `<ready containers>/<containers>`; sidecars count, other init containers do not."""
    sidecars = _sidecars(pod)
    total = len(first_maps(pod, "spec", "containers")) + len(_names_of_sidecars(pod))
    count = 0
    for state in first_maps(pod, "status", "initContainerStatuses"):
        if number(state, "state", "terminated", "exitCode") == 0 and _ended(state):
            continue
        if state.get("name") not in sidecars or not state.get("started"):
            break  # those behind it have not started
        count += bool(state.get("ready"))
    if not _starting(pod) or _is_initialized(pod):
        count += sum(map(_is_running, first_maps(pod, "status", "containerStatuses")))
    return f"{count}/{total}"


def status(pod: Tree) -> str:
    """Return the phase of a Pod, or the more specific reason of a container."""
    phase, reason = text(pod, "status", "phase"), text(pod, "status", "reason")
    if look(pod, "metadata", "deletionTimestamp"):
        if reason == "NodeLost":
            return "Unknown"
        if phase not in _FINAL:
            return "Terminating"
    summary = reason or phase
    conditions = first_maps(pod, "status", "conditions")
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated" for c in conditions
    ):
        summary = "SchedulingGated"
    starting = _starting(pod)
    summary = starting or summary
    if not starting or _is_initialized(pod):
        summary = _running(pod, summary)
    return summary


def restarts(pod: Tree) -> str:
    """Render the number of restarts, and when the last one was."""
    if not _starting(pod) or _is_initialized(pod):
        sidecars = _sidecars(pod)
        first = [state for state in _until_failed(pod) if state.get("name") in sidecars]
        states = [*first, *first_maps(pod, "status", "containerStatuses")]
    else:
        states = _until_failed(pod)
    total = sum(number(state, "restartCount") for state in states)
    ends = (
        [look(state, "lastState", "terminated", "finishedAt") for state in states] if total else ()
    )
    times = [time for end in ends if end and (time := parse_time(end)) is not None]
    return f"{total} ({since(max(times).isoformat())} ago)" if total and times else str(total)


def _until_failed(pod: Tree) -> Sequence[Tree]:
    """The init containers up to the first that has neither finished nor, as a sidecar, started."""
    sidecars, states = _sidecars(pod), list[Tree]()
    for state in first_maps(pod, "status", "initContainerStatuses"):
        states.append(state)
        if not _is_past(state, sidecars):
            break
    return states


def _readiness_gates(pod: Tree) -> str:
    gates = first_maps(pod, "spec", "readinessGates")
    statuses: dict[str, str] = {}
    for condition in first_maps(pod, "status", "conditions"):  # the first of a type counts
        statuses.setdefault(text(condition, "type"), text(condition, "status"))
    passed = sum(statuses.get(text(gate, "conditionType")) == "True" for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


def _ip(pod: Tree) -> str:
    addresses = first_maps(pod, "status", "podIPs")
    return (text(addresses[0], "ip") if addresses else text(pod, "status", "podIP")) or NONE


def _starting(pod: Tree) -> str:
    """Return the state of the first init container that has not finished; empty if all have."""
    sidecars = _sidecars(pod)
    for index, state in enumerate(first_maps(pod, "status", "initContainerStatuses")):
        if _is_past(state, sidecars):
            continue
        if _ended(state):
            return f"Init:{_end(state)}"
        waiting = text(state, "state", "waiting", "reason")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{len(first_maps(pod, 'spec', 'initContainers'))}"
    return ""


def _is_past(state: Tree, sidecars: frozenset[str]) -> bool:
    """Whether the containers behind an init container may start."""
    if _ended(state) and not number(state, "state", "terminated", "exitCode"):
        return True
    return state.get("name") in sidecars and bool(state.get("started"))


def _running(pod: Tree, summary: str) -> str:
    """Return the reason of the first container that has one; a failure comes before Completed."""
    states = first_maps(pod, "status", "containerStatuses")
    summary = next((reason for state in states if (reason := _reason(state))), summary)
    if summary != "Completed":
        return summary
    is_running = any(map(_is_running, states))
    if is_running and _has_ready_condition(pod):
        return "Running"
    failed = next(filter(_has_failed, states), None)
    if failed is not None:
        return _end(failed)
    return "NotReady" if is_running else summary


def _has_ready_condition(pod: Tree) -> bool:
    return any(
        c.get("type") == "Ready" and c.get("status") == "True"
        for c in first_maps(pod, "status", "conditions")
    )


def _has_failed(state: Tree) -> bool:
    is_waiting = bool(text(state, "state", "waiting", "reason"))
    return not is_waiting and number(state, "state", "terminated", "exitCode") != 0


def _reason(state: Tree) -> str:
    if waiting := text(state, "state", "waiting", "reason"):
        return waiting
    return _end(state) if _ended(state) else ""


def _ended(state: Tree) -> bool:
    return isinstance(look(state, "state", "terminated"), dict)


def _end(state: Tree) -> str:
    ended = look(state, "state", "terminated")
    if reason := text(ended, "reason"):
        return reason
    if signal := number(ended, "signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{number(ended, 'exitCode')}"


def _is_running(state: Tree) -> bool:
    """Whether a container is ready, and neither waits for a reason nor has ended."""
    is_ready = bool(state.get("ready")) and look(state, "state", "running") is not None
    return is_ready and not _reason(state)


def _is_initialized(pod: Tree) -> bool:
    return is_true(pod, "status", "conditions", kind="Initialized")


def _sidecars(pod: Tree) -> frozenset[str]:
    """Return the names of the init containers that keep running beside the others."""
    return frozenset(_names_of_sidecars(pod))


def _names_of_sidecars(pod: Tree) -> Sequence[str]:
    return [
        text(container, "name")
        for container in first_maps(pod, "spec", "initContainers")
        if container.get("restartPolicy") == "Always"
    ]


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "core/pods": (
        NAME,
        column("Ready", ready),
        column("Status", status),
        column("Restarts", restarts),
        AGE,
        wide("IP", _ip),
        wide("Node", filled("spec", "nodeName", default=NONE)),
        wide("Nominated Node", filled("status", "nominatedNodeName", default=NONE)),
        wide("Readiness Gates", _readiness_gates),
    ),
    "core/podtemplates": (
        NAME,
        *template_columns("template", "spec", "containers", by_default=True),
        column("Pod Labels", labels("template", "metadata", "labels")),
    ),
}
