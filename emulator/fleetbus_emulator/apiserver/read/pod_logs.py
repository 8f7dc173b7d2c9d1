"""The log of a simulated container: one line that says so, and the refusals of a real kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.errors import bad_request
from fleetbus_emulator.apiserver.http.exchange import integer
from fleetbus_emulator.apiserver.json_tree import listing, mapping

if TYPE_CHECKING:
    from fleetbus_emulator.apiserver.http.exchange import Request

JsonObject = dict[str, Any]
STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def read_log(pod: JsonObject, request: Request) -> str:
    """The log that a request asks for.

    Raises:
        ApiError: 400, there is no such container, it has not started, or it never ended before.
    """
    name = pod["metadata"]["name"]
    container = request.query.get("container") or _only_container(pod)
    _check_container(pod, container)
    if not mapping(pod, "spec").get("nodeName"):
        return ""
    status = _status_of(pod, container)
    waiting = mapping(status, "state", "waiting")
    if waiting:
        why = waiting.get("reason", "")
        raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {why}')
    state, previous = "state", request.flag("previous")
    if previous:
        state = "lastState"
        if not mapping(status, "lastState", "terminated"):
            place = f'container "{container}" in pod "{name}"'
            raise bad_request(f"previous terminated {place} not found")
    phase = mapping(pod, "status").get("phase", "Unknown")
    line = f"{name} is simulated; phase {'Failed' if previous else phase}"
    if request.flag("timestamps"):
        started = _started(mapping(status, state)) or pod["metadata"]["creationTimestamp"]
        line = f"{started} {line}"
    return _cut(f"{line}\n", request)


def _cut(text: str, request: Request) -> str:
    tail, most = integer(request.query, "tailLines"), integer(request.query, "limitBytes")
    if tail == 0:
        return ""
    return text if most is None else text[:most]


def _started(state: JsonObject) -> str | None:
    running, terminated = mapping(state, "running"), mapping(state, "terminated")
    return running.get("startedAt") or terminated.get("startedAt")


def _names(pod: JsonObject, field: str) -> list[str]:
    return [container.get("name", "") for container in listing(pod, "spec", field)]


def _only_container(pod: JsonObject) -> str:
    names, inits = _names(pod, "containers"), _names(pod, "initContainers")
    if len(names) == 1:
        return names[0]
    why = f"a container name must be specified for pod {pod['metadata']['name']}"
    why += f", choose one of: [{' '.join(names)}]"
    if inits:
        why += f" or one of the init containers: [{' '.join(inits)}]"
    raise bad_request(why)


def _check_container(pod: JsonObject, container: str) -> None:
    fields = ("containers", "initContainers", "ephemeralContainers")
    if not any(container in _names(pod, field) for field in fields):
        name = pod["metadata"]["name"]
        raise bad_request(f"container {container} is not valid for pod {name}")


def _status_of(pod: JsonObject, container: str) -> JsonObject:
    statuses = (status for field in STATUSES for status in listing(pod, "status", field))
    nothing: JsonObject = {}
    return next((status for status in statuses if status.get("name") == container), nothing)
