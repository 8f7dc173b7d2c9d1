"""The columns that kubectl shows for Pods: readiness, status, restarts."""

from __future__ import annotations

from typing import Final

from fleetbus.kube.json_fields import Tree, condition, look, many, number, text
from fleetbus.process.human_time import parse_time, render_age

_FINAL: Final = frozenset({"Succeeded", "Failed"})


def ready(pod: Tree) -> str:
    """Render `<ready containers>/<containers>`; sidecars count, other init containers do not."""
    sidecars = _sidecars(pod)
    total = len(many(pod, "spec", "containers")) + len(sidecars)
    states = [
        *many(pod, "status", "containerStatuses"),
        *(s for s in many(pod, "status", "initContainerStatuses") if s.get("name") in sidecars),
    ]
    return f"{sum(bool(state.get('ready')) for state in states)}/{total}"


def status(pod: Tree) -> str:
    """Return the phase of a Pod, or the more specific reason of a container."""
    phase = text(pod, "status", "phase")
    reason = text(pod, "status", "reason")
    if look(pod, "metadata", "deletionTimestamp"):
        if reason == "NodeLost":
            return "Unknown"
        if phase not in _FINAL:
            return "Terminating"
    if condition(pod, "PodScheduled").get("reason") == "SchedulingGated":
        return "SchedulingGated"
    starting = _starting(pod)
    if starting and condition(pod, "Initialized").get("status") != "True":
        return starting
    return _running(pod) or reason or phase or "Unknown"


def restarts(pod: Tree) -> str:
    """Render the number of restarts, and when the last one was."""
    sidecars = _sidecars(pod)
    states = many(pod, "status", "containerStatuses")
    first = many(pod, "status", "initContainerStatuses")
    counted = first if _starting(pod) else [s for s in first if s.get("name") in sidecars]
    states = [*states, *counted]
    count = sum(number(state, "restartCount") for state in states)
    ends = [parse_time(look(s, "lastState", "terminated", "finishedAt") or "") for s in states]
    known = [end for end in ends if end is not None]
    return f"{count} ({render_age(max(known).isoformat())} ago)" if count and known else str(count)


def readiness_gates(pod: Tree) -> str:
    """Render `<true gates>/<gates>`, or `<none>`."""
    gates = many(pod, "spec", "readinessGates")
    passed = sum(
        condition(pod, text(gate, "conditionType")).get("status") == "True" for gate in gates
    )
    return f"{passed}/{len(gates)}" if gates else "<none>"


def _starting(pod: Tree) -> str:
    """Return the state of the first init container that has not finished; empty if all have."""
    sidecars = _sidecars(pod)
    total = len(many(pod, "spec", "initContainers"))
    for at, state in enumerate(many(pod, "status", "initContainerStatuses")):
        ended = look(state, "state", "terminated")
        waiting = text(state, "state", "waiting", "reason")
        if ended is not None:
            if number(ended, "exitCode") == 0:
                continue
            return f"Init:{_end(ended)}"
        if state.get("name") in sidecars and state.get("started"):
            continue
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{at}/{total}"
    return ""


def _running(pod: Tree) -> str:
    """Return the reason of the first container that has one."""
    states = many(pod, "status", "containerStatuses")
    reasons = [reason for state in states if (reason := _reason(state))]
    if not reasons:
        return ""
    if reasons[0] == "Completed" and any(_is_running(state) for state in states):
        return "Running" if condition(pod, "Ready").get("status") == "True" else "NotReady"
    return reasons[0]


def _reason(state: Tree) -> str:
    if waiting := text(state, "state", "waiting", "reason"):
        return waiting
    ended = look(state, "state", "terminated")
    return "" if ended is None else _end(ended)


def _end(ended: object) -> str:
    if reason := text(ended, "reason"):
        return reason
    if signal := number(ended, "signal"):
        return f"Signal:{signal}"
    return f"ExitCode:{number(ended, 'exitCode')}"


def _is_running(state: Tree) -> bool:
    return bool(state.get("ready")) and look(state, "state", "running") is not None


def _sidecars(pod: Tree) -> frozenset[str]:
    """Return the names of the init containers that keep running beside the others."""
    return frozenset(
        text(container, "name")
        for container in many(pod, "spec", "initContainers")
        if container.get("restartPolicy") == "Always"
    )
